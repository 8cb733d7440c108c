#include "worker/runtime/open_ports.h"

#include <fmt/format.h>

#include <string_view>

namespace lockstep::worker {
namespace {

std::string Joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) {
    if (!text.empty()) text += ", ";
    text += word;
  }
  return text;
}

std::string Plural(std::string_view noun, const std::vector<std::string>& of) {
  return fmt::format("{}{} {}", noun, of.size() == 1 ? "" : "s", Joined(of));
}

}  // namespace

std::string Describe(const OpenPorts& open) {
  constexpr std::string_view kProven = "for workers that prove the job's key";
  std::string line = "open to others: ";
  if (!open.tcp.empty()) line += fmt::format("tcp {}, {}; ", Joined(open.tcp), kProven);
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
      "exchange.transport = ucx: over TCP UCX asks nobody for a proof. Whoever reaches {} may "
      "write "
      "this process's memory or end it. Only where everybody on the network is trusted{}",
      where,
      rdma ? "; connections take RDMA where both ends have it, over a listener because ucx was "
             "named: auto takes RDMA without a port"
           : "; auto takes tcp here");
}

}  // namespace lockstep::worker
