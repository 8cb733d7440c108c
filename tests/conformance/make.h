// The transports of the conformance tests by the names of their parameter.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "transport/network_thread.h"
#include "transport/transport.h"
#ifdef LOCKSTEP_HAVE_UCX
#include "transport/ucx/ucx_transport.h"
#endif

namespace lockstep::transport {

// Those of the transports that share one. To be cleared behind the transports, and before the
// process exits: what OpenSSL keeps for a thread goes with the thread.
inline std::vector<std::shared_ptr<NetworkThread>>& SharedThreads() {
  static std::vector<std::shared_ptr<NetworkThread>> threads;
  return threads;
}

inline bool Encrypts(std::string_view name) { return name.starts_with("tls"); }

// With the options that go with the name. "tcp" and "ucx"; "tls", which is tcp with encryption;
// "tcp3" and "tls3", with three connections to each peer, on a thread that runs on behind the
// transport; and "ucx_addresses": that by which UCX goes over RDMA, over whatever the environment
// gives UCX. Without RDMA this is shared memory, which nobody else takes that way.
inline Result<std::unique_ptr<Transport>> MakeByName(const std::string& name, Options options) {
#ifdef LOCKSTEP_HAVE_UCX
  if (name == "ucx_addresses") {
    return MakeUcxTransport(std::move(options), UcxWiring::kAddresses);
  }
#endif
  options.encryption = Encrypts(name);
  if (name.ends_with('3')) {
    options.connections = 3;
    options.network = SharedThreads().emplace_back(std::make_shared<NetworkThread>("shared"));
  }
  const bool tcp = name.starts_with("tls") || name.starts_with("tcp");
  return MakeTransport(tcp ? "tcp" : name, std::move(options));
}

}  // namespace lockstep::transport
