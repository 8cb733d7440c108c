#include "tools/simulate/apart.h"

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <utility>

#include "base/check.h"

namespace lockstep::simulate {
namespace {

constexpr int kReturned = 42;  // a status that no other end has
// The limit is in processor time: a job that takes longer loops for ever. The slowest seed takes
// about a second, and ten times as long in a sanitized build.
#ifdef LOCKSTEP_SANITIZED
constexpr rlim_t kSecondsMost = 200;
#else
constexpr rlim_t kSecondsMost = 20;
#endif

}  // namespace

Apart::Apart(const std::function<std::string()>& function) {
  std::array<int, 2> ends{};
  LOCKSTEP_CHECK(::pipe(ends.data()) == 0, "no pipe");
  std::fflush(nullptr);
  pid_ = ::fork();
  LOCKSTEP_CHECK(pid_ >= 0, "no process");
  if (pid_ == 0) {
    std::signal(SIGINT, SIG_DFL);
    std::signal(SIGTERM, SIG_DFL);
    ::close(ends[0]);
    ::dup2(ends[1], STDERR_FILENO);
    const rlimit most{kSecondsMost, kSecondsMost + 1};
    ::setrlimit(RLIMIT_CPU, &most);
    std::string text = function();
    text.resize(std::min(text.size(), kTextBytes));
    for (std::size_t at = 0; at < text.size();) {
      const ssize_t wrote = ::write(ends[1], text.data() + at, text.size() - at);
      if (wrote <= 0) ::_exit(1);
      at += static_cast<std::size_t>(wrote);
    }
    ::_exit(kReturned);
  }
  ::close(ends[1]);
  out_ = ends[0];
}

Apart::Apart(Apart&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)), out_(std::exchange(other.out_, -1)) {}

Apart::~Apart() {
  if (pid_ > 0) Wait();
}

void Apart::Kill() { ::kill(pid_, SIGKILL); }

Apart::Ended Apart::Wait() {
  Ended ended;
  std::array<char, 4096> part{};
  for (;;) {
    const ssize_t got = ::read(out_, part.data(), part.size());
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    ended.text.append(part.data(), static_cast<std::size_t>(got));
  }
  ::close(out_);
  int status = 0;
  while (::waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
  }
  pid_ = -1;
  ended.ok = WIFEXITED(status) && WEXITSTATUS(status) == kReturned;
  if (WIFSIGNALED(status) && WTERMSIG(status) == SIGXCPU) {
    ended.text +=
        "it has not ended in " + std::to_string(kSecondsMost) + " s of a processor's time";
  } else if (!ended.ok && ended.text.empty()) {
    ended.text = "it was killed";
  }
  return ended;
}

}  // namespace lockstep::simulate
