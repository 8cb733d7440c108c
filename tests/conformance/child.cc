#include "tests/conformance/child.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <filesystem>

#include "base/check.h"

extern char** environ;

namespace lockstep::transport {

ChildPeer::ChildPeer(const std::string& transport, const MemberId& self,
                     const std::string& listen_host) {
  const auto program =
      std::filesystem::read_symlink("/proc/self/exe").parent_path() / "transport_conformance_peer";
  std::array<int, 2> to_child{};
  std::array<int, 2> from_child{};
  LOCKSTEP_CHECK(::pipe2(to_child.data(), O_CLOEXEC) == 0);
  LOCKSTEP_CHECK(::pipe2(from_child.data(), O_CLOEXEC) == 0);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, to_child[0], STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, from_child[1], STDOUT_FILENO);
  std::array<std::string, 5> words = {program.string(), transport, fmt::format("{}", self.worker),
                                      fmt::format("{}", self.incarnation), listen_host};
  std::array<char*, 6> arguments{};
  for (std::size_t i = 0; i < words.size(); ++i) arguments[i] = words[i].data();
  const int failed =
      ::posix_spawn(&pid_, program.c_str(), &actions, nullptr, arguments.data(), environ);
  LOCKSTEP_CHECK(failed == 0, "{} does not start", program.string());
  posix_spawn_file_actions_destroy(&actions);
  ::close(to_child[0]);
  ::close(from_child[1]);
  input_ = to_child[1];
  for (char c = 0; ::read(from_child[0], &c, 1) == 1 && c != '\n';) address_ += c;
  ::close(from_child[0]);
}

ChildPeer::~ChildPeer() {
  Kill();
  ::close(input_);
}

void ChildPeer::Signal(int signal) { LOCKSTEP_CHECK(::kill(pid_, signal) == 0); }

void ChildPeer::SuspendAndWait() {
  Signal(SIGSTOP);
  int status = 0;
  LOCKSTEP_CHECK(::waitpid(pid_, &status, WUNTRACED) == pid_ && WIFSTOPPED(status));
}

void ChildPeer::Kill() {
  if (pid_ < 0) return;
  Signal(SIGKILL);
  LOCKSTEP_CHECK(::waitpid(pid_, nullptr, 0) == pid_);
  pid_ = -1;
}

bool ChildPeer::AwaitKilled() {
  int status = 0;
  LOCKSTEP_CHECK(::waitpid(pid_, &status, 0) == pid_);
  pid_ = -1;
  return WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
}

}  // namespace lockstep::transport
