// A peer in a process of its own, which a test can stop, continue and kill.
#pragma once

#include <sys/types.h>

#include <string>
#include <string_view>

#include "transport/transport.h"

namespace lockstep::transport {

// A peer that is told so kills itself from its data thread, between two turns of its transport.
inline constexpr std::string_view kDie = "die";

// Runs the helper program: it serves the pattern, gives every message back that begins with "echo",
// dies when it is told to, and ends with its standard input, hence with the test.
class ChildPeer {
 public:
  ChildPeer(const std::string& transport, const MemberId& self, const std::string& listen_host);
  ~ChildPeer();
  ChildPeer(const ChildPeer&) = delete;
  ChildPeer& operator=(const ChildPeer&) = delete;

  // Empty when it did not start.
  const std::string& address() const { return address_; }
  void Signal(int signal);
  // Returns when all its threads have stopped.
  void SuspendAndWait();
  void Kill();
  // Of one that kills itself. False: it ended in another way.
  bool AwaitKilled();

 private:
  pid_t pid_ = -1;
  int input_ = -1;
  std::string address_;
};

}  // namespace lockstep::transport
