// "127.0.0.1:4711" and "[fe80::1]:4711" as socket addresses.
#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"

namespace lockstep::transport::ucx {

class SocketAddress {
 public:
  // It takes numeric hosts only: a data path must not wait for a name server.
  static Result<SocketAddress> FromHost(const std::string& host, std::uint16_t port);
  static Result<SocketAddress> Parse(std::string_view text);
  explicit SocketAddress(const sockaddr_storage& storage) : storage_(storage) {}

  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage_); }
  socklen_t size() const;
  // True for 0.0.0.0 or ::, to which nobody can connect.
  bool any() const;
  // The loopback device when it has the address, such as "lo"; else empty.
  std::string LoopbackDevice() const;
  std::uint16_t port() const;
  std::string ToString() const;

 private:
  sockaddr_storage storage_;
};

}  // namespace lockstep::transport::ucx
