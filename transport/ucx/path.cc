#include "transport/ucx/path.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <vector>

#include "transport/ucx/library.h"

namespace lockstep::transport::ucx {
namespace {

const PathReport kUnknown{.text = "unknown"};

// Several lanes may take the same way, "transport/device".
class PathList {
 public:
  void Add(const std::string& way) {
    for (const std::string& known : ways_) {
      if (known == way) return;
    }
    ways_.push_back(way);
  }

  PathReport Report() const {
    std::string text;
    bool rdma = false;
    bool tcp = false;
    for (const std::string& way : ways_) {
      text += (text.empty() ? "" : " + ") + way;
      rdma = rdma || IsRdma(way);
      tcp = tcp || way.starts_with("tcp");
    }
    if (text.empty()) return kUnknown;
    if (!rdma || tcp) return {.text = text};
    return {.text = text + " (RDMA)", .rdma = true};
  }

 private:
  std::vector<std::string> ways_;
};

// The words after the way, from "md[1]" on, name the uses of the lane. Where the only one is
// "keepalive", or "wireup" as well, it carries none of our bytes.
bool CarriesData(std::string_view uses) {
  for (const std::string_view use : {" am", " rma", " tag", " amo"}) {
    if (uses.find(use) != std::string_view::npos) return true;
  }
  return uses.find(" keepalive") == std::string_view::npos;
}

}  // namespace

bool IsRdma(std::string_view transport) {
  constexpr std::array<std::string_view, 5> kFamilies = {"rc_", "dc_", "ud_", "srd", "gga"};
  return std::ranges::any_of(
      kFamilies, [&](std::string_view family) { return transport.starts_with(family); });
}

// A lane reads "#   lane[0]:  3:tcp/eth0.0 md[1]  -> md[1]/tcp/sysdev[255] am keepalive": index,
// transport, device, path index. The lane of the connection manager ("lane[1]: cm tcp") carries no
// data and has no index.
PathReport PathFromPrintedInfo(std::string_view printed) {
  PathList paths;
  while (!printed.empty()) {
    const auto line = printed.substr(0, printed.find('\n'));
    printed.remove_prefix(std::min(line.size() + 1, printed.size()));
    auto at = line.find("lane[");
    if (at == std::string_view::npos) continue;
    at = line.find("]:", at);
    if (at == std::string_view::npos) continue;
    auto rest = line.substr(at + 2);
    rest.remove_prefix(std::min(rest.find_first_not_of(' '), rest.size()));
    if (rest.empty() || std::isdigit(static_cast<unsigned char>(rest.front())) == 0) continue;
    rest.remove_prefix(std::min(rest.find(':') + 1, rest.size()));
    const auto way = rest.substr(0, rest.find(' '));
    if (!CarriesData(rest.substr(way.size()))) continue;
    const auto dot = way.rfind('.');
    if (dot != std::string_view::npos) paths.Add(std::string(way.substr(0, dot)));
  }
  return paths.Report();
}

namespace {

#if UCP_API_VERSION >= UCP_VERSION(1, 14)

PathReport QueriedPath(ucp_ep_h endpoint) {
  std::array<ucp_transport_entry_t, 16> entries{};
  ucp_ep_attr_t attributes{};
  attributes.field_mask = UCP_EP_ATTR_FIELD_TRANSPORTS;
  attributes.transports.entries = entries.data();
  attributes.transports.num_entries = static_cast<unsigned>(entries.size());
  attributes.transports.entry_size = sizeof(ucp_transport_entry_t);
  PathList paths;
  if (ucp_ep_query(endpoint, &attributes) != UCS_OK) return paths.Report();
  // UCX does not name their uses. Beside a connected transport, the datagrams are only for wiring
  // up and keeping alive.
  const auto used = std::span(entries).first(attributes.transports.num_entries);
  const bool connected = std::ranges::any_of(used, [](const ucp_transport_entry_t& entry) {
    const std::string_view name = entry.transport_name;
    return name.starts_with("rc_") || name.starts_with("dc_");
  });
  for (const ucp_transport_entry_t& entry : used) {
    const std::string_view name = entry.transport_name;
    if (connected && name.starts_with("ud_")) continue;
    paths.Add(std::string(name) + "/" + entry.device_name);
  }
  return paths.Report();
}

#endif

PathReport PrintedPath(ucp_ep_h endpoint) {
  char* text = nullptr;
  std::size_t bytes = 0;
  std::FILE* stream = open_memstream(&text, &bytes);
  if (stream == nullptr) return kUnknown;
  ucp_ep_print_info(endpoint, stream);
  std::fclose(stream);
  PathReport path = PathFromPrintedInfo({text, bytes});
  std::free(text);
  return path;
}

}  // namespace

PathReport EndpointPath(ucp_ep_h endpoint) {
#if UCP_API_VERSION >= UCP_VERSION(1, 14)
  if (LibraryHasMinor(14)) return QueriedPath(endpoint);
#endif
  return PrintedPath(endpoint);
}

}  // namespace lockstep::transport::ucx
