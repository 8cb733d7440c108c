#include "transport/tcp_sockets.h"

#include <arpa/inet.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <fstream>
#include <iterator>
#include <optional>
#include <set>
#include <sstream>

namespace lockstep::transport {
namespace {

constexpr std::string_view kEstablished = "01";
constexpr std::string_view kListening = "0A";

template <class T>
std::optional<T> Number(std::string_view text, int base) {
  T value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, base);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

// "0100007F" is 127.0.0.1: words of four bytes in the processor's byte order.
std::string HostText(std::string_view hexadecimal) {
  std::array<std::uint32_t, 4> words{};
  if (hexadecimal.size() != 8 && hexadecimal.size() != 32) return {};
  const std::size_t count = hexadecimal.size() / 8;
  for (std::size_t i = 0; i < count; ++i) {
    const auto word = Number<std::uint32_t>(hexadecimal.substr(8 * i, 8), 16);
    if (!word) return {};
    words[i] = *word;
  }
  std::array<char, INET6_ADDRSTRLEN> text{};
  const bool v6 = count == 4;
  if (inet_ntop(v6 ? AF_INET6 : AF_INET, words.data(), text.data(), text.size()) == nullptr) {
    return {};
  }
  return v6 ? fmt::format("[{}]", text.data()) : std::string(text.data());
}

}  // namespace

// A line is "  0: 0100007F:C001 0100007F:D002 01 00000000:00000000 00:00000000 00000000  0  0 4242
// ...". Its columns are number, local and remote address, state, queues, timer, retransmissions,
// user, time-out, inode.
std::vector<TcpSocket> ReadTcpTable(std::string_view table) {
  std::vector<TcpSocket> sockets;
  std::istringstream lines{std::string(table)};
  for (std::string line; std::getline(lines, line);) {
    std::istringstream text(line);
    const std::vector<std::string> words{std::istream_iterator<std::string>(text), {}};
    if (words.size() < 10) continue;
    const std::string_view local = words[1];
    const auto colon = local.find(':');
    if (colon == std::string_view::npos) continue;
    const std::string host = HostText(local.substr(0, colon));
    const auto port = Number<std::uint16_t>(local.substr(colon + 1), 16);
    const auto inode = Number<std::uint64_t>(words[9], 10);
    if (host.empty() || !port || !inode) continue;
    sockets.push_back({.local = fmt::format("{}:{}", host, *port),
                       .port = *port,
                       .listening = words[3] == kListening,
                       .established = words[3] == kEstablished,
                       .inode = *inode});
  }
  return sockets;
}

std::vector<TcpSocket> AllTcpSockets(const std::filesystem::path& process) {
  std::string tables;
  for (const char* name : {"net/tcp", "net/tcp6"}) {
    std::ifstream table(process / name);
    tables.append(std::istreambuf_iterator<char>(table), {});
  }
  return ReadTcpTable(tables);
}

std::vector<std::string> ListeningAddresses(const std::filesystem::path& process) {
  constexpr std::string_view kSocket = "socket:[";
  std::set<std::uint64_t> own;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(process / "fd", ignored)) {
    const std::string target = std::filesystem::read_symlink(entry.path(), ignored).string();
    if (!target.starts_with(kSocket)) continue;
    std::string_view inode = target;
    inode.remove_prefix(kSocket.size());
    if (const auto number = Number<std::uint64_t>(inode.substr(0, inode.find(']')), 10)) {
      own.insert(*number);
    }
  }
  std::vector<std::string> addresses;
  for (const TcpSocket& socket : AllTcpSockets(process)) {
    if (socket.listening && own.contains(socket.inode)) addresses.push_back(socket.local);
  }
  std::ranges::sort(addresses);
  return addresses;
}

}  // namespace lockstep::transport
