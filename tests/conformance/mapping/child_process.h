// A forked child that a test talks to line by line; killed and reaped at the end at the latest.
#pragma once

#include <sys/types.h>

#include <functional>
#include <string>

namespace lockstep::transport {

class ChildProcess {
 public:
  // The child's end of the conversation.
  class Parent {
   public:
    Parent(int in, int out) : in_(in), out_(out) {}
    void Say(const std::string& line) const;
    std::string Hear() const;  // ends the child when the parent is gone

   private:
    int in_;
    int out_;
  };

  // Runs `body` in a child, which ends with status 0 after it. No other thread may run in this
  // process: fork while no ArenaServer lives here.
  explicit ChildProcess(const std::function<void(const Parent&)>& body);
  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  void Say(const std::string& line) const;
  std::string Hear() const;  // empty when the child is gone

  // Each returns when the kernel has confirmed it.
  void Kill();
  void Stop();
  void Continue() const;
  void AwaitStopped() const;  // for a child that stops itself

 private:
  pid_t pid_ = -1;
  int in_ = -1;
  int out_ = -1;
};

}  // namespace lockstep::transport
