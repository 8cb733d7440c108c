#include "transport/ucx/path.h"

#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <vector>
#if UCP_API_VERSION >= UCP_VERSION(1, 14)
#include <array>
#endif

namespace lockstep::transport::ucx {
namespace {

// Several lanes may take the same way.
class PathList {
 public:
  void Add(const std::string& way) {
    for (const std::string& known : ways_) {
      if (known == way) return;
    }
    ways_.push_back(way);
  }

  std::string Text() const {
    std::string text;
    for (const std::string& way : ways_) text += (text.empty() ? "" : " + ") + way;
    return text.empty() ? "unknown" : text;
  }

 private:
  std::vector<std::string> ways_;
};

}  // namespace

// A lane reads "#   lane[0]:  3:tcp/eth0.0 md[1]  -> md[1]/tcp/sysdev[255] am keepalive": index,
// transport, device, path index. The lane of the connection manager ("lane[1]: cm tcp") carries no
// data and has no index.
std::string PathFromPrintedInfo(std::string_view printed) {
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
    const auto dot = way.rfind('.');
    if (dot != std::string_view::npos) paths.Add(std::string(way.substr(0, dot)));
  }
  return paths.Text();
}

#if UCP_API_VERSION >= UCP_VERSION(1, 14)

std::string EndpointPath(ucp_ep_h endpoint) {
  std::array<ucp_transport_entry_t, 16> entries{};
  ucp_ep_attr_t attributes{};
  attributes.field_mask = UCP_EP_ATTR_FIELD_TRANSPORTS;
  attributes.transports.entries = entries.data();
  attributes.transports.num_entries = static_cast<unsigned>(entries.size());
  attributes.transports.entry_size = sizeof(ucp_transport_entry_t);
  PathList paths;
  if (ucp_ep_query(endpoint, &attributes) != UCS_OK) return paths.Text();
  for (unsigned i = 0; i < attributes.transports.num_entries; ++i) {
    paths.Add(std::string(entries[i].transport_name) + "/" + entries[i].device_name);
  }
  return paths.Text();
}

#else

std::string EndpointPath(ucp_ep_h endpoint) {
  char* text = nullptr;
  std::size_t bytes = 0;
  std::FILE* stream = open_memstream(&text, &bytes);
  if (stream == nullptr) return "unknown";
  ucp_ep_print_info(endpoint, stream);
  std::fclose(stream);
  std::string path = PathFromPrintedInfo({text, bytes});
  std::free(text);
  return path;
}

#endif

}  // namespace lockstep::transport::ucx
