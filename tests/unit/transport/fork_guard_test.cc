// What a child of this process has of its guarded sockets: nothing.
#include "transport/fork_guard.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <thread>

namespace lockstep::transport {
namespace {

struct Pair {
  Pair() { EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()), 0); }
  ~Pair() {
    for (const int end : ends) {
      if (end >= 0) ::close(end);
    }
  }
  std::array<int, 2> ends{-1, -1};
};

// Runs `body` in a child that is only forked; what it returns.
template <class Body>
int InChild(Body&& body) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(body());
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

bool IsSocket(int fd) {
  struct ::stat status {};
  return ::fstat(fd, &status) == 0 && S_ISSOCK(status.st_mode);
}

bool IsOpen(int fd) { return ::fcntl(fd, F_GETFD) >= 0; }

TEST(ForkGuard, AChildHoldsNoSocketOfOurs) {
  Pair guarded, other;
  const ForkGuard guard(guarded.ends[0]);
  EXPECT_EQ(InChild([&] {
              if (IsSocket(guarded.ends[0]) || !IsOpen(guarded.ends[0])) return 1;
              return IsSocket(other.ends[0]) ? 0 : 2;
            }),
            0);
  EXPECT_TRUE(IsSocket(guarded.ends[0]));
}

TEST(ForkGuard, OurDeathEndsTheConnectionThoughAChildLives) {
  Pair pair;
  Pair alive;  // the child ends when this does
  const pid_t owner = ::fork();
  if (owner == 0) {
    const ForkGuard guard(pair.ends[0]);
    ::close(pair.ends[1]);
    ::close(alive.ends[1]);
    if (::fork() == 0) {
      char byte = 0;
      (void)!::read(alive.ends[0], &byte, 1);
      ::_exit(0);
    }
    ::kill(::getpid(), SIGKILL);
  }
  ::close(std::exchange(pair.ends[0], -1));
  ::close(std::exchange(alive.ends[0], -1));
  char byte = 0;
  EXPECT_EQ(::read(pair.ends[1], &byte, 1), 0) << "the end of the connection";
  EXPECT_EQ(::waitpid(owner, nullptr, 0), owner);
}

TEST(ForkGuard, WhatIsReleasedIsTheChildsAgain) {
  Pair pair;
  ForkGuard guard(pair.ends[0]);
  ForkGuard moved = std::move(guard);
  guard.Release();
  EXPECT_EQ(InChild([&] { return IsSocket(pair.ends[0]) ? 1 : 0; }), 0);
  moved.Release();
  EXPECT_EQ(InChild([&] { return IsSocket(pair.ends[0]) ? 0 : 1; }), 0);
}

TEST(ForkGuard, AChildHasAListOfItsOwn) {
  Pair pair;
  ForkGuard guard(pair.ends[0]);
  EXPECT_EQ(InChild([&] {
              guard.Release();
              Pair own;
              const ForkGuard again(own.ends[0]);
              return InChild([&] { return IsSocket(own.ends[0]) ? 1 : 0; });
            }),
            0);
}

TEST(ForkGuard, ForksAndSocketsMayComeAtOnce) {
  std::atomic<bool> stop = false;
  std::thread opening([&] {
    while (!stop) {
      Pair pair;
      ForkGuard guard(pair.ends[0]);
      guard.Release();
    }
  });
  for (int i = 0; i < 50; ++i) EXPECT_EQ(InChild([] { return 0; }), 0);
  stop = true;
  opening.join();
}

}  // namespace
}  // namespace lockstep::transport
