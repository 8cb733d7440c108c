#include "transport/ucx/report.h"

#include <fmt/format.h>

#include "transport/ucx/context.h"
#include "transport/ucx/library.h"

namespace lockstep::transport::ucx {

Report Describe() {
  Report report;
  report.built_with = fmt::format("{}.{}", UCP_API_MAJOR, UCP_API_MINOR);
  if (const Status opened = OpenLibrary(); !opened) {
    report.error = opened.error().message;
    return report;
  }
  report.version = ucp_get_version_string();
  report.library = LibraryFile();
  // It is an address of all interfaces, so that no device is left out.
  const auto context = Context::Open("0.0.0.0", Scope::kAll);
  if (!context) {
    report.error = context.error().message;
    return report;
  }
  report.components = (*context)->components();
  report.ways = (*context)->ways();
  report.cuda_memory = (*context)->supports_cuda();
  return report;
}

}  // namespace lockstep::transport::ucx
