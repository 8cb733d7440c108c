// The TCP sockets of this host and process, as the kernel lists them. The kernel knows which ones
// are open; the libraries that open them need not say.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::transport {

struct TcpSocket {
  std::string local;  // "127.0.0.1:4711", "[::1]:4711"
  std::uint16_t port = 0;
  bool listening = false;
  bool established = false;
  std::uint64_t inode = 0;  // 0: no process has it yet
};

// The readable lines of /proc/net/tcp or tcp6.
std::vector<TcpSocket> ReadTcpTable(std::string_view table);

// All TCP sockets of this network namespace. `process` stands for /proc/self, so that tests can
// have their own.
std::vector<TcpSocket> AllTcpSockets(const std::filesystem::path& process = "/proc/self");

// The addresses on which this process listens, sorted. A socket that is opened meanwhile may be
// missed.
std::vector<std::string> ListeningAddresses(const std::filesystem::path& process = "/proc/self");

}  // namespace lockstep::transport
