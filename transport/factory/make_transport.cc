#include <fmt/format.h>

#include <utility>

#include "transport/tcp/tcp_transport.h"
#include "transport/transport.h"
#ifdef LOCKSTEP_HAVE_UCX
#include "transport/ucx/ucx_transport.h"
#endif

namespace lockstep::transport {

Result<std::unique_ptr<Transport>> MakeTransport(std::string_view name, Options options) {
  if (name == "tcp") return MakeTcpTransport(std::move(options));
  if (name == "ucx" || name == "ucx-rdma") {
    if (options.encryption) {
      return Error{ErrorCode::kUnavailable, "UCX does not encrypt, and exchange.encryption is on"};
    }
#ifdef LOCKSTEP_HAVE_UCX
    return name == "ucx" ? MakeUcxTransport(std::move(options))
                         : MakeUcxRdmaTransport(std::move(options));
#else
    return Error{ErrorCode::kUnavailable, "this build has no UCX transport (LOCKSTEP_WITH_UCX)"};
#endif
  }
  return Error{ErrorCode::kInvalid, fmt::format("no transport is called '{}'", name)};
}

}  // namespace lockstep::transport
