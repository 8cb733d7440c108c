// A network address as a user writes it: "127.0.0.1:7070", "[::1]:7070", "node3:7070".
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"

namespace lockstep {

struct HostPort {
  std::string host;  // a name or an address, IPv6 without brackets
  std::uint16_t port = 0;
  bool operator==(const HostPort&) const = default;
};

// Returns kInvalid with the expected form. It checks the syntax only and resolves nothing.
Result<HostPort> ParseHostPort(std::string_view text);

// Writes "host:port", with brackets around an IPv6 address.
std::string ToString(const HostPort& address);

}  // namespace lockstep
