// Child processes that never outlive this one, a folder that goes with it, and its signals.
// One thread.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"

namespace lockstep::bench {

// A folder of its own below the system's temporary one; removed with all that is in it.
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

// SIGINT and SIGTERM as a descriptor that can be waited for. To be made before any thread.
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

// The error that a signal ends everything with.
Error Interrupted();
bool IsInterrupted(const Error& error);

// A program that lies beside this one. Killed when it still runs at the end, also when this process
// dies.
class Child {
 public:
  // Standard output and error go to `log`.
  static Result<Child> Start(const std::string& program, const std::vector<std::string>& arguments,
                             const std::filesystem::path& log);
  ~Child();
  Child(Child&& other) noexcept;
  Child& operator=(Child&&) = delete;

  pid_t pid() const { return pid_; }
  int fd() const { return fd_; }  // readable when it has ended
  // Nothing while it runs. 128 + signal when it was killed.
  std::optional<int> Status();
  // Its log's last line, for messages.
  std::string LastWords() const;
  // Of one that has ended: "lockstep-bench was killed by signal 9", "lockstep-bench ended with
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

// Until all have ended; an error as soon as one has failed.
Status WaitForAll(std::vector<Child*> children, Signals& signals);

// Where a coordinator listens; port 0: a free one. The secret's file: empty: none.
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

// So many files open at a time, here and in the children; kUnavailable where that is not allowed.
Status AllowOpenFiles(std::uint64_t files);

}  // namespace lockstep::bench
