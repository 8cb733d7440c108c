// The address of an arena: a name in the abstract namespace of Unix sockets, with the host and
// network namespace in which it has a meaning. So a peer elsewhere learns why it cannot map.
//
//   mapping:BOOT:NETNS:NAME    e.g. mapping:6f0f...c1:4026531840:lockstep-arena-9c41...
#pragma once

#include <sys/socket.h>
#include <sys/un.h>

#include <string>

#include "base/result.h"

namespace lockstep::transport {

struct MappingAddress {
  std::string boot;   // the running kernel's boot id, "-" where it cannot be read
  std::string netns;  // the inode of the network namespace, "-" where it cannot be read
  std::string name;   // without the leading zero byte of the abstract namespace

  // An address of this process, with a fresh random name.
  static MappingAddress Make();
  static Result<MappingAddress> Parse(const std::string& text);  // kInvalid
  std::string Format() const;

  // Returns kUnavailable where a process here cannot reach `other`, with the reason in words.
  Status CheckReach() const;

  struct Socket {
    sockaddr_un address{};
    socklen_t bytes = 0;
    const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&address); }
  };
  Socket ToSocket() const;
};

}  // namespace lockstep::transport
