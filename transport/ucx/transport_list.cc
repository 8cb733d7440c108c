#include "transport/ucx/transport_list.h"

#include <algorithm>
#include <vector>

namespace lockstep::transport::ucx {
namespace {

// Also matches the literal form and the one for wiring up alone: "\tcp", "tcp:aux".
bool IsTcp(std::string_view item) {
  while (item.starts_with('\\') || item.starts_with(' ')) item.remove_prefix(1);
  return item.substr(0, item.find_first_of(": ")) == "tcp";
}

}  // namespace

std::string WithoutTcp(std::string_view list) {
  const bool forbids = list.starts_with('^');
  bool all = false;
  std::vector<std::string_view> kept;
  for (std::string_view rest = list.substr(forbids ? 1 : 0); !rest.empty();) {
    const std::string_view item = rest.substr(0, rest.find(','));
    rest.remove_prefix(std::min(item.size() + 1, rest.size()));
    all = all || item == "all";
    if (!item.empty() && !IsTcp(item)) kept.push_back(item);
  }
  if (forbids) kept.push_back("tcp");
  if (all && !forbids) return "^tcp";
  std::string joined;
  for (const std::string_view item : kept) {
    joined += joined.empty() ? (forbids ? "^" : "") : ",";
    joined += item;
  }
  return joined;
}

}  // namespace lockstep::transport::ucx
