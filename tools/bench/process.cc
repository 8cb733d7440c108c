#include "tools/bench/process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/inotify.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fstream>

#include "base/check.h"
#include "base/host_port.h"

namespace lockstep::bench {
namespace {

namespace fs = std::filesystem;

constexpr const char* kInterrupted = "interrupted";

Error SystemError(ErrorCode code, const std::string& doing) {
  return {code, fmt::format("{}: {}", doing, std::strerror(errno))};
}

::sigset_t EndingSignals() {
  ::sigset_t set;
  ::sigemptyset(&set);
  ::sigaddset(&set, SIGINT);
  ::sigaddset(&set, SIGTERM);
  return set;
}

// Calls only functions that are allowed between fork and exec.
[[noreturn]] void BecomeChild(pid_t parent, int log, char* const* arguments) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(127);
  ::setpgid(0, 0);  // Ctrl-C is for the parent, which ends its children
  const ::sigset_t set = EndingSignals();
  ::sigprocmask(SIG_UNBLOCK, &set, nullptr);
  ::dup2(log, STDOUT_FILENO);
  ::dup2(log, STDERR_FILENO);
  ::execv(arguments[0], arguments);
  ::_exit(127);
}

std::string FirstLine(const fs::path& path) {
  std::ifstream in(path);
  std::string line;
  std::getline(in, line);
  return line;
}

}  // namespace

Result<TempFolder> TempFolder::Make() {
  std::error_code error;
  std::string name = (fs::temp_directory_path(error) / "lockstep-bench-XXXXXX").string();
  if (::mkdtemp(name.data()) == nullptr) return SystemError(ErrorCode::kIo, name);
  return TempFolder(name);
}

TempFolder::TempFolder(TempFolder&& other) noexcept
    : path_(std::exchange(other.path_, fs::path())) {}

TempFolder::~TempFolder() {
  std::error_code ignored;
  if (!path_.empty()) fs::remove_all(path_, ignored);
}

Signals::Signals() {
  const ::sigset_t set = EndingSignals();
  ::sigprocmask(SIG_BLOCK, &set, nullptr);
  fd_ = ::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
  LOCKSTEP_CHECK(fd_ >= 0, "no signalfd: {}", std::strerror(errno));
}

Signals::~Signals() { ::close(fd_); }

bool Signals::Came() {
  ::signalfd_siginfo info;
  return ::read(fd_, &info, sizeof(info)) == static_cast<ssize_t>(sizeof(info));
}

Error Interrupted() { return {ErrorCode::kClosed, kInterrupted}; }
bool IsInterrupted(const Error& error) { return error.message == kInterrupted; }

Result<Child> Child::Start(const std::string& program, const std::vector<std::string>& arguments,
                           const fs::path& log) {
  std::error_code error;
  const fs::path own = fs::read_symlink("/proc/self/exe", error);
  const std::string path = (own.parent_path() / program).string();
  if (::access(path.c_str(), X_OK) != 0) {
    return Error{ErrorCode::kNotFound, fmt::format("{}: no such program beside this one", path)};
  }
  std::vector<std::string> words = {path};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  const int out = ::open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (out < 0) return SystemError(ErrorCode::kIo, log.string());
  const pid_t parent = ::getpid();
  const pid_t pid = ::fork();
  if (pid == 0) BecomeChild(parent, out, pointers.data());
  ::close(out);
  if (pid < 0) return SystemError(ErrorCode::kUnavailable, program);
  const int fd = static_cast<int>(::syscall(SYS_pidfd_open, pid, 0));
  LOCKSTEP_CHECK(fd >= 0, "no pidfd: {}", std::strerror(errno));
  return Child(program, log, pid, fd);
}

Child::Child(Child&& other) noexcept
    : name_(std::move(other.name_)),
      log_(std::move(other.log_)),
      pid_(std::exchange(other.pid_, -1)),
      fd_(std::exchange(other.fd_, -1)),
      status_(other.status_) {}

Child::~Child() {
  if (pid_ < 0) return;
  if (!status_) {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  ::close(fd_);
}

std::optional<int> Child::Status() {
  int status = 0;
  if (!status_ && ::waitpid(pid_, &status, WNOHANG) == pid_) {
    status_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  return status_;
}

std::string Child::LastWords() const {
  std::ifstream in(log_);
  std::string last;
  for (std::string line; std::getline(in, line);) {
    if (!line.empty()) last = line;
  }
  return last;
}

std::string Child::HowItEnded() const {
  LOCKSTEP_CHECK(status_.has_value(), "{} is running", name_);
  const std::string how = *status_ > 128 ? fmt::format("was killed by signal {}", *status_ - 128)
                                         : fmt::format("ended with status {}", *status_);
  const std::string words = LastWords();
  return fmt::format("{} {}{}{}", name_, how, words.empty() ? "" : ": ", words);
}

Status WaitForAll(std::vector<Child*> children, Signals& signals) {
  while (!children.empty()) {
    std::vector<::pollfd> waits = {{signals.fd(), POLLIN, 0}};
    for (const Child* child : children) waits.push_back({child->fd(), POLLIN, 0});
    ::poll(waits.data(), waits.size(), -1);
    if (signals.Came()) return Interrupted();
    for (Child* child : children) {
      const auto status = child->Status();
      if (status && *status != 0) {
        return Error{ErrorCode::kClosed, child->HowItEnded()};
      }
    }
    std::erase_if(children, [](Child* child) { return child->Status().has_value(); });
  }
  return {};
}

Result<RunningCoordinator> StartCoordinator(std::uint32_t workers, const std::string& config,
                                            const fs::path& folder, Signals& signals,
                                            const CoordinatorPlace& place) {
  const fs::path run_dir = folder / "run";
  const fs::path config_file = folder / "job.ini";
  std::error_code error;
  fs::create_directories(run_dir, error);
  std::ofstream(config_file) << config;
  const int watch = ::inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
  LOCKSTEP_CHECK(watch >= 0, "no inotify: {}", std::strerror(errno));
  ::inotify_add_watch(watch, run_dir.c_str(), IN_MOVED_TO | IN_CLOSE_WRITE);
  std::vector<std::string> words = {"--listen",    ToString(HostPort{place.host, place.port}),
                                    "--workers",   std::to_string(workers),
                                    "--config",    config_file.string(),
                                    "--run-dir",   run_dir.string(),
                                    "--log-level", "warn"};
  if (!place.secret_file.empty()) words.insert(words.end(), {"--secret-file", place.secret_file});
  auto child = Child::Start("lockstep-coordinator", words, folder / "coordinator.log");
  if (!child) {
    ::close(watch);
    return child.error();
  }
  Result<std::uint16_t> port = Interrupted();
  for (;;) {
    std::array<::pollfd, 3> waits = {::pollfd{watch, POLLIN, 0}, ::pollfd{child->fd(), POLLIN, 0},
                                     ::pollfd{signals.fd(), POLLIN, 0}};
    ::poll(waits.data(), waits.size(), -1);
    if (signals.Came()) break;
    if (child->Status()) {
      // The line begins with the program's own name.
      port = Error{ErrorCode::kInvalid, child->LastWords()};
      break;
    }
    std::array<char, 4096> scrap;
    while (::read(watch, scrap.data(), scrap.size()) > 0) {
    }
    const auto address = ParseHostPort(FirstLine(run_dir / "coordinator.address"));
    if (!address) continue;
    port = address->port;
    break;
  }
  ::close(watch);
  if (!port) return port.error();
  return RunningCoordinator{std::move(*child), *port};
}

Status AllowOpenFiles(std::uint64_t files) {
  ::rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  if (limit.rlim_cur >= files) return {};
  const rlim_t hard = limit.rlim_max;
  limit.rlim_cur = files;
  limit.rlim_max = std::max<rlim_t>(hard, files);
  if (::setrlimit(RLIMIT_NOFILE, &limit) == 0) return {};
  return Error{ErrorCode::kUnavailable,
               fmt::format("{} open files are needed and {} allowed: raise the limit (ulimit -n)",
                           files, hard)};
}

}  // namespace lockstep::bench
