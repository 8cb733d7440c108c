#include "worker/runtime/open_ports.h"

#include <fmt/format.h>

#include <boost/asio/ip/address.hpp>
#include <string_view>

#include "base/ini.h"
#include "transport/control/resolve.h"

namespace lockstep::worker {
namespace {

std::string WithCommas(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) {
    if (!text.empty()) text += ", ";
    text += word;
  }
  return text;
}

std::string Plural(std::string_view noun, const std::vector<std::string>& of) {
  return fmt::format("{}{} {}", noun, of.size() == 1 ? "" : "s", WithCommas(of));
}

}  // namespace

// Peers prove the job's key, but without a secret whoever joins gets that one: the coordinator, to
// which that is open, is on loopback then. And an address that means all of a host's own would have
// every peer connect to itself.
Status CheckDataHost(const std::string& host, bool has_secret) {
  if (host.empty()) return {};
  const auto wrong = [&](std::string_view why) {
    return Error{ErrorCode::kInvalid, fmt::format("data host {}: {}", Printable(host), why)};
  };
  boost::system::error_code no_address;
  auto address = boost::asio::ip::make_address(host, no_address);
  if (no_address) return wrong("wants an IP address, as 192.168.7.12");
  if (address.is_v6() && address.to_v6().is_v4_mapped()) {
    address = boost::asio::ip::make_address_v4(boost::asio::ip::v4_mapped, address.to_v6());
  }
  if (address.is_unspecified()) {
    return wrong(
        "is no address that others could connect to: one of this host's own, as "
        "192.168.7.12");
  }
  if (!has_secret && !transport::control::IsLoopback(address)) {
    return wrong("beyond loopback a --secret-file is required");
  }
  return {};
}

std::string Describe(const OpenPorts& open) {
  constexpr std::string_view kProven = "for workers that prove the job's key";
  std::string line = "open to others: ";
  if (!open.tcp.empty()) line += fmt::format("tcp {}, {}; ", WithCommas(open.tcp), kProven);
  if (!open.ucx.empty()) {
    line += Plural("UCX's port", open.ucx) + ", for anybody who reaches them";
  } else {
    line += open.ucx_listens ? "UCX's listener, for anybody who reaches it" : "no port of UCX";
  }
  if (open.rdma) line += "; RDMA, for anybody on its network";
  if (!open.arena.empty()) {
    line += fmt::format("; memory to map at {}, on this host, {}", open.arena, kProven);
  }
  return line;
}

std::string UcxWarning(const OpenPorts& open, bool rdma) {
  const std::string where = open.ucx.empty() ? "its listener" : "its " + Plural("port", open.ucx);
  return fmt::format(
      "exchange.transport = ucx: over TCP UCX asks nobody for a proof. Anybody who reaches {} may "
      "write this process's memory or end it. Use it only where you trust everybody on the "
      "network{}",
      where,
      rdma ? "; connections take RDMA where both ends have it, over a listener because ucx was "
             "named: auto takes RDMA without a port"
           : "; auto takes tcp here");
}

}  // namespace lockstep::worker
