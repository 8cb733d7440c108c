// Child processes that never outlive this one, a folder that is removed with it, and its signals.
// They belong to one thread.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"

namespace lockstep::bench {

// A folder of its own below the system's temporary one; it is removed with all its contents.
class TempFolder {
 public:
  static Result<TempFolder> Make();
  ~TempFolder();
  TempFolder(TempFolder&& other) noexcept;
  TempFolder& operator=(TempFolder&&) = delete;

  const std::filesystem::path& path() const { return path_; }

 private:
  explicit TempFolder(std::filesystem::path path) : path_(std::move(path)) {}
  std::filesystem::path path_;
};

// SIGINT and SIGTERM as a descriptor that can be waited for. Make it before any thread.
class Signals {
 public:
  Signals();
  ~Signals();
  Signals(const Signals&) = delete;
  Signals& operator=(const Signals&) = delete;

  int fd() const { return fd_; }
  bool Came();  // since the last look

 private:
  int fd_ = -1;
};

// The error with which a signal ends everything.
Error Interrupted();
bool IsInterrupted(const Error& error);

// A program in the folder of this one. It is killed when it still runs at the end, also when this
// process dies.
class Child {
 public:
  // Its standard output and error go to `log`.
  static Result<Child> Start(const std::string& program, const std::vector<std::string>& arguments,
                             const std::filesystem::path& log);
  ~Child();
  Child(Child&& other) noexcept;
  Child& operator=(Child&&) = delete;

  pid_t pid() const { return pid_; }
  int fd() const { return fd_; }  // readable when it has ended
  // nullopt while it runs. 128 + signal when it was killed.
  std::optional<int> Status();
  // The last line of its log, for messages.
  std::string LastWords() const;
  // How a process has ended: "lockstep-bench was killed by signal 9", "lockstep-bench ended with
  // status 1: its last words".
  std::string HowItEnded() const;

 private:
  Child(std::string name, std::filesystem::path log, pid_t pid, int fd)
      : name_(std::move(name)), log_(std::move(log)), pid_(pid), fd_(fd) {}

  std::string name_;
  std::filesystem::path log_;
  pid_t pid_ = -1;
  int fd_ = -1;
  std::optional<int> status_;
};

// Waits until all have ended; returns an error as soon as one has failed.
Status WaitForAll(std::vector<Child*> children, Signals& signals);

// The address of a coordinator; port 0: a free one. The file of the secret; empty: none.
struct CoordinatorPlace {
  std::string host = "127.0.0.1";
  std::uint16_t port = 0;
  std::string secret_file;
};

// Starts lockstep-coordinator, and waits until it listens.
struct RunningCoordinator {
  Child process;
  std::uint16_t port = 0;
};
// `config`: the INI text; `folder` gets the run directory, the config and the log.
Result<RunningCoordinator> StartCoordinator(std::uint32_t workers, const std::string& config,
                                            const std::filesystem::path& folder, Signals& signals,
                                            const CoordinatorPlace& place = {});

// Allows so many open files at a time, here and in the children; kUnavailable where that is not
// allowed.
Status AllowOpenFiles(std::uint64_t files);

}  // namespace lockstep::bench
