#include "transport/fork_guard.h"

#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <mutex>
#include <vector>

#include "base/check.h"

namespace lockstep::transport {
namespace {

// It is held during a fork, so that the child finds the list whole.
std::mutex g_mutex;

// It is never destroyed: other threads may still close sockets while the process ends.
std::vector<int>& Guarded() {
  static auto* const guarded = new std::vector<int>;
  return *guarded;
}

// In the child only calls that are safe in a signal handler are allowed.
void CloseInChild() {
  const int null = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  for (const int fd : Guarded()) {
    if (null < 0 || ::dup3(null, fd, O_CLOEXEC) < 0) ::close(fd);
  }
  if (null >= 0) ::close(null);
  Guarded().clear();
  g_mutex.unlock();
}

void WatchForks() {
  const int failed =
      ::pthread_atfork([] { g_mutex.lock(); }, [] { g_mutex.unlock(); }, CloseInChild);
  LOCKSTEP_CHECK(failed == 0, "no memory to watch forks");
}

}  // namespace

ForkGuard::ForkGuard(int fd) : fd_(fd) {
  static std::once_flag once;
  std::call_once(once, WatchForks);
  const std::lock_guard lock(g_mutex);
  Guarded().push_back(fd);
}

void ForkGuard::Release() {
  const int fd = std::exchange(fd_, -1);
  if (fd < 0) return;
  const std::lock_guard lock(g_mutex);
  const auto found = std::find(Guarded().begin(), Guarded().end(), fd);
  if (found != Guarded().end()) Guarded().erase(found);  // in a child it is gone
}

}  // namespace lockstep::transport
