#include "tests/conformance/mapping/child_process.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>

#include "base/check.h"

namespace lockstep::transport {
namespace {

void WriteLine(int fd, const std::string& line) {
  const std::string text = line + "\n";
  const ssize_t written = write(fd, text.data(), text.size());
  LOCKSTEP_CHECK(written == static_cast<ssize_t>(text.size()));
}

std::string ReadLine(int fd) {
  std::string line;
  for (char c = 0;;) {
    const ssize_t got = read(fd, &c, 1);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return {};
    if (c == '\n') return line;
    line += c;
  }
}

}  // namespace

void ChildProcess::Parent::Say(const std::string& line) const { WriteLine(out_, line); }

std::string ChildProcess::Parent::Hear() const {
  std::string line = ReadLine(in_);
  if (line.empty()) _exit(1);
  return line;
}

ChildProcess::ChildProcess(const std::function<void(const Parent&)>& body) {
  int down[2], up[2];
  LOCKSTEP_CHECK(pipe(down) == 0 && pipe(up) == 0);
  pid_ = fork();
  LOCKSTEP_CHECK(pid_ >= 0);
  if (pid_ == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    close(down[1]);
    close(up[0]);
    body(Parent(down[0], up[1]));
    _exit(0);
  }
  close(down[0]);
  close(up[1]);
  in_ = up[0];
  out_ = down[1];
}

ChildProcess::~ChildProcess() {
  if (pid_ > 0) Kill();
  close(in_);
  close(out_);
}

void ChildProcess::Say(const std::string& line) const { WriteLine(out_, line); }
std::string ChildProcess::Hear() const { return ReadLine(in_); }

void ChildProcess::Kill() {
  kill(pid_, SIGKILL);
  int status = 0;
  LOCKSTEP_CHECK(waitpid(pid_, &status, 0) == pid_);
  pid_ = -1;
}

void ChildProcess::Stop() {
  kill(pid_, SIGSTOP);
  AwaitStopped();
}

void ChildProcess::Continue() const { kill(pid_, SIGCONT); }

void ChildProcess::AwaitStopped() const {
  int status = 0;
  LOCKSTEP_CHECK(waitpid(pid_, &status, WUNTRACED) == pid_ && WIFSTOPPED(status));
}

}  // namespace lockstep::transport
