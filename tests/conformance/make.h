// The transports of the conformance tests by the names of their parameter.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "base/result.h"
#include "transport/transport.h"
#ifdef LOCKSTEP_HAVE_UCX
#include "transport/ucx/ucx_transport.h"
#endif

namespace lockstep::transport {

// "tcp" and "ucx", and "ucx_addresses": that by which UCX goes over RDMA, over whatever the
// environment gives UCX. Without RDMA this is shared memory, which nobody else takes that way.
inline Result<std::unique_ptr<Transport>> MakeByName(const std::string& name, Options options) {
#ifdef LOCKSTEP_HAVE_UCX
  if (name == "ucx_addresses") {
    return MakeUcxTransport(std::move(options), UcxWiring::kAddresses);
  }
#endif
  return MakeTransport(name, std::move(options));
}

}  // namespace lockstep::transport
