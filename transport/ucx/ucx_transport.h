// The transport over UCX: RDMA where there is any, TCP otherwise. It works between hosts and on
// one.
//
// A piece is a rendezvous active message: the serving peer offers it, and this end takes it
// straight into its destination or refuses. After a refusal nothing moves. UCX's own environment
// variables (UCX_TLS, UCX_NET_DEVICES, ...) choose the transports. Over TCP on loopback, pieces of
// 1 MiB with 4 to 8 of them under way are the fastest (tests/unit/transport_ucx/bandwidth.cc
// measures it). Pieces of 4 MiB lose a third of that speed, those of 64 KiB two thirds.
#pragma once

#include <cstdint>
#include <memory>

#include "base/result.h"
#include "transport/transport.h"

namespace lockstep::transport {

// How the two ends of a connection find each other.
enum class UcxWiring : std::uint8_t {
  // They connect by IP address, to a listener. UCX may use its TCP, which accepts any client of its
  // ports and lets it write anywhere: it is for networks where everybody is trusted.
  kListener,
  // They use addresses of UCX's workers, which the peers get from the coordinator: no port is open,
  // and UCX's TCP is left out. The remaining transports reach the same host, or need RDMA.
  kAddresses,
};

// Returns kUnavailable, with UCX's reason, where it does not start; kInvalid for options that make
// no sense.
Result<std::unique_ptr<Transport>> MakeUcxTransport(Options options,
                                                    UcxWiring wiring = UcxWiring::kListener);

// Wires by addresses, and only over RDMA. kUnavailable where UCX finds none here. It is also
// kUnavailable where `listen_host` is on the loopback device, since RDMA would open the process to
// the network all the same.
Result<std::unique_ptr<Transport>> MakeUcxRdmaTransport(Options options);

}  // namespace lockstep::transport
