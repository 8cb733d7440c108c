#include "transport/ucx/address.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>

#include <array>
#include <charconv>
#include <cstring>

namespace lockstep::transport::ucx {

Result<SocketAddress> SocketAddress::FromHost(const std::string& host, std::uint16_t port) {
  addrinfo hints{};
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (host.empty() ||
      getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found) != 0) {
    return Error{ErrorCode::kInvalid, fmt::format("'{}' is not an IP address", host)};
  }
  sockaddr_storage storage{};
  std::memcpy(&storage, found->ai_addr, found->ai_addrlen);
  freeaddrinfo(found);
  return SocketAddress(storage);
}

Result<SocketAddress> SocketAddress::Parse(std::string_view text) {
  const auto colon = text.rfind(':');
  const Error malformed{ErrorCode::kInvalid, fmt::format("'{}' is not HOST:PORT", text)};
  if (colon == std::string_view::npos) return malformed;
  std::string_view host = text.substr(0, colon);
  const std::string_view digits = text.substr(colon + 1);
  std::uint16_t port = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), port);
  if (error != std::errc() || end != digits.data() + digits.size() || port == 0) return malformed;
  if (host.size() >= 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  }
  return FromHost(std::string(host), port);
}

socklen_t SocketAddress::size() const {
  return storage_.ss_family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
}

bool SocketAddress::any() const {
  if (storage_.ss_family == AF_INET6) {
    const auto& v6 = reinterpret_cast<const sockaddr_in6&>(storage_);
    return IN6_IS_ADDR_UNSPECIFIED(&v6.sin6_addr);
  }
  return reinterpret_cast<const sockaddr_in&>(storage_).sin_addr.s_addr == htonl(INADDR_ANY);
}

// All of 127.0.0.0/8 is on the loopback device, also addresses that it does not list.
std::string SocketAddress::LoopbackDevice() const {
  const bool loopback =
      storage_.ss_family == AF_INET6
          ? IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6&>(storage_).sin6_addr)
          : ntohl(reinterpret_cast<const sockaddr_in&>(storage_).sin_addr.s_addr) >> 24 == 127;
  ifaddrs* all = nullptr;
  if (!loopback || getifaddrs(&all) != 0) return {};
  std::string name;
  for (const ifaddrs* one = all; one != nullptr && name.empty(); one = one->ifa_next) {
    if ((one->ifa_flags & IFF_LOOPBACK) != 0 && (one->ifa_flags & IFF_UP) != 0)
      name = one->ifa_name;
  }
  freeifaddrs(all);
  return name;
}

std::uint16_t SocketAddress::port() const {
  return ntohs(storage_.ss_family == AF_INET6
                   ? reinterpret_cast<const sockaddr_in6&>(storage_).sin6_port
                   : reinterpret_cast<const sockaddr_in&>(storage_).sin_port);
}

std::string SocketAddress::ToString() const {
  std::array<char, NI_MAXHOST> host{};
  std::array<char, NI_MAXSERV> port{};
  if (getnameinfo(get(), size(), host.data(), host.size(), port.data(), port.size(),
                  NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
    return "unknown";
  }
  return storage_.ss_family == AF_INET6 ? fmt::format("[{}]:{}", host.data(), port.data())
                                        : fmt::format("{}:{}", host.data(), port.data());
}

}  // namespace lockstep::transport::ucx
