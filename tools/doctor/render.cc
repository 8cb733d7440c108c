#include "tools/doctor/render.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

namespace lockstep::doctor {
namespace {

const char* ColourOf(Verdict verdict) {
  switch (verdict) {
    case Verdict::kOk:
      return "\033[32m";
    case Verdict::kWarning:
      return "\033[33m";
    case Verdict::kProblem:
      return "\033[31m";
  }
  return "";
}

std::string Counted(std::size_t count, std::string_view what) {
  return fmt::format("{} {}{}", count, what, count == 1 ? "" : "s");
}

nlohmann::json OrNull(const std::string& text) {
  return text.empty() ? nlohmann::json() : nlohmann::json(text);
}

}  // namespace

std::string RenderText(const std::vector<Line>& lines, bool colour) {
  std::size_t width = 0;
  for (const Line& line : lines) width = std::max(width, line.name.size());
  std::string text;
  std::string section;
  std::size_t warnings = 0;
  std::size_t problems = 0;
  for (const Line& line : lines) {
    warnings += line.verdict == Verdict::kWarning ? 1 : 0;
    problems += line.verdict == Verdict::kProblem ? 1 : 0;
    if (line.section != section) {
      section = line.section;
      text += fmt::format("{}{}{}{}\n", text.empty() ? "" : "\n", colour ? "\033[1m" : "", section,
                          colour ? "\033[0m" : "");
    }
    text += fmt::format("  {}{:<8}{} {:<{}}  {}\n", colour ? ColourOf(line.verdict) : "",
                        Name(line.verdict), colour ? "\033[0m" : "", line.name, width, line.value);
    if (!line.remedy.empty()) text += fmt::format("           -> {}\n", line.remedy);
  }
  return text +
         fmt::format("\n{}, {}\n", Counted(problems, "problem"), Counted(warnings, "warning"));
}

std::string RenderJson(const Facts& facts, const std::vector<Line>& lines) {
  using nlohmann::json;
  json out;
  out["version"] = facts.version;
  out["verdict"] = Name(Worst(lines));
  out["lines"] = json::array();
  for (const Line& line : lines) {
    out["lines"].push_back({{"section", line.section},
                            {"name", line.name},
                            {"value", line.value},
                            {"verdict", Name(line.verdict)},
                            {"remedy", OrNull(line.remedy)}});
  }
  out["bandwidth"] = json::array();
  for (const Bandwidth& one : facts.bandwidth) {
    out["bandwidth"].push_back({{"transport", one.transport},
                                {"memory", one.memory},
                                {"path", OrNull(one.path)},
                                {"gb_per_s", one.error.empty() ? json(one.gb_per_second) : json()},
                                {"error", OrNull(one.error)}});
  }
  out["rdma"] = json::array();
  for (const RdmaPort& port : facts.machine.rdma) {
    json gids = json::array();
    for (const Gid& gid : port.gids) {
      gids.push_back({{"index", gid.index}, {"gid", gid.gid}, {"type", OrNull(gid.type)}});
    }
    out["rdma"].push_back({{"device", port.device},
                           {"port", port.port},
                           {"state", port.state},
                           {"link_layer", port.link_layer},
                           {"rate", port.rate},
                           {"netdev", OrNull(port.netdev)},
                           {"address", OrNull(port.address)},
                           {"numa_node", port.numa_node < 0 ? json() : json(port.numa_node)},
                           {"nearest_gpu", OrNull(port.nearest_gpu)},
                           {"gids", gids}});
  }
  out["ucx"] = json();
  if (facts.ucx.built) {
    json ways = json::array();
    for (const UcxWay& way : facts.ucx.ways) {
      ways.push_back({{"transport", way.transport}, {"device", way.device}, {"rdma", way.rdma}});
    }
    out["ucx"] = {{"version", OrNull(facts.ucx.version)},
                  {"built_with", facts.ucx.built_with},
                  {"library", OrNull(facts.ucx.library)},
                  {"components", facts.ucx.components},
                  {"transports", ways},
                  {"cuda_memory", facts.ucx.cuda_memory},
                  {"error", OrNull(facts.ucx.error)}};
  }
  json devices = json::array();
  for (const CudaDevice& device : facts.cuda.devices) {
    devices.push_back({{"device", fmt::format("cuda:{}", device.ordinal)},
                       {"name", device.name},
                       {"bytes", device.bytes},
                       {"pci", OrNull(device.pci)}});
  }
  out["cuda"] = {{"built", facts.cuda.built},
                 {"devices", devices},
                 {"driver", OrNull(facts.machine.nvidia.driver)},
                 {"peermem", facts.machine.nvidia.peermem},
                 {"dmabuf", facts.machine.dmabuf()},
                 {"version", OrNull(facts.cuda.version)},
                 {"driver_version", OrNull(facts.cuda.driver)}};
  out["gpus"] = json::array();
  for (const auto& gpu : facts.machine.gpus) {
    json nearest = json::array();
    for (const RdmaPort* port : transport::paths::NearestPorts(facts.machine, gpu.pci)) {
      nearest.push_back(port->name());
    }
    out["gpus"].push_back({{"pci", gpu.pci},
                           {"numa_node", gpu.numa_node < 0 ? json() : json(gpu.numa_node)},
                           {"pci_lanes", gpu.lanes == 0 ? json() : json(gpu.lanes)},
                           {"max_pci_lanes", gpu.max_lanes == 0 ? json() : json(gpu.max_lanes)},
                           {"nearest_rdma", nearest}});
  }
  return out.dump(2, ' ', false, json::error_handler_t::replace) + "\n";
}

}  // namespace lockstep::doctor
