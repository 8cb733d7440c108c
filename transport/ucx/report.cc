#include "transport/ucx/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <sstream>

#include "transport/ucx/context.h"
#include "transport/ucx/path.h"

namespace lockstep::transport::ucx {

// Lines of interest: "#     component 4  :  ib" and "#      resource 1  :  md 1  dev 1  flags --
// tcp/lo". UCX has no other way to tell.
void ReadPrintedContext(std::string_view printed, Report& report) {
  std::istringstream text{std::string(printed)};
  for (std::string line; std::getline(text, line);) {
    std::istringstream words(line);
    std::string hash;
    std::string kind;
    words >> hash >> kind;
    if (kind != "component" && kind != "resource") continue;
    std::string last;
    for (std::string word; words >> word;) last = word;
    if (kind == "component") {
      report.components.push_back(last);
      continue;
    }
    const auto slash = last.find('/');
    if (slash == std::string::npos) continue;
    Way way{last.substr(0, slash), last.substr(slash + 1), false};
    way.rdma = IsRdma(way.transport);
    if (std::ranges::find(report.ways, way) == report.ways.end()) report.ways.push_back(way);
  }
}

Report Describe() {
  Report report;
  report.built_with = fmt::format("{}.{}", UCP_API_MAJOR, UCP_API_MINOR);
  report.version = ucp_get_version_string();
  // An address of all interfaces, so that no device is left out.
  const auto context = Context::Open("0.0.0.0");
  if (!context) {
    report.error = context.error().message;
    return report;
  }
  report.cuda_memory = (*context)->supports_cuda();
  char* text = nullptr;
  std::size_t bytes = 0;
  std::FILE* stream = open_memstream(&text, &bytes);
  if (stream == nullptr) return report;
  ucp_context_print_info((*context)->get(), stream);
  std::fclose(stream);
  ReadPrintedContext({text, bytes}, report);
  std::free(text);
  return report;
}

}  // namespace lockstep::transport::ucx
