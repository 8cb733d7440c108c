// The TCP sockets of this host and process, as the kernel lists them: what is open is asked of it,
// not of the libraries that open it.
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

// The lines of /proc/net/tcp or tcp6 that can be read.
std::vector<TcpSocket> ReadTcpTable(std::string_view table);

// All of this network namespace. `process` stands for /proc/self, so that tests can have their own.
std::vector<TcpSocket> AllTcpSockets(const std::filesystem::path& process = "/proc/self");

// The addresses on which this process listens, sorted. What is opened meanwhile may be missed.
std::vector<std::string> ListeningAddresses(const std::filesystem::path& process = "/proc/self");

}  // namespace lockstep::transport
