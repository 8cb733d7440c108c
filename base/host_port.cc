#include "base/host_port.h"

#include <algorithm>
#include <charconv>

namespace lockstep {
namespace {

// The limit of a DNS name; an IPv6 address with its zone is shorter.
constexpr std::size_t kLongestHost = 255;

bool IsHostCharacter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
         c == '-' || c == '_';
}

}  // namespace

Result<HostPort> ParseHostPort(std::string_view text) {
  const Error malformed{ErrorCode::kInvalid,
                        "expected HOST:PORT, as 127.0.0.1:7070, [::1]:7070 or node3:7070"};
  const auto colon = text.rfind(':');
  if (colon == std::string_view::npos) return malformed;
  std::string_view host = text.substr(0, colon);
  const std::string_view digits = text.substr(colon + 1);
  const bool bracketed = host.size() > 2 && host.front() == '[' && host.back() == ']';
  if (bracketed) host = host.substr(1, host.size() - 2);
  const auto allowed = [&](char c) {
    return IsHostCharacter(c) || (bracketed && (c == ':' || c == '%'));
  };
  if (host.empty() || host.size() > kLongestHost || !std::ranges::all_of(host, allowed)) {
    return malformed;
  }
  std::uint16_t port = 0;
  const auto [end, failed] = std::from_chars(digits.data(), digits.data() + digits.size(), port);
  if (failed != std::errc() || digits.empty() || end != digits.data() + digits.size()) {
    return malformed;
  }
  return HostPort{std::string(host), port};
}

std::string ToString(const HostPort& address) {
  const bool v6 = address.host.find(':') != std::string::npos;
  return (v6 ? "[" + address.host + "]" : address.host) + ":" + std::to_string(address.port);
}

}  // namespace lockstep
