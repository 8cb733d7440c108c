// The transport over UCX: RDMA where there is any, TCP otherwise. Between hosts and on one.
//
// A piece is a rendezvous active message: the peer that was asked offers it, and this end takes it
// straight into its destination or refuses, in which case nothing moves. UCX's own environment
// variables (UCX_TLS, UCX_NET_DEVICES, ...) choose the transports. Over TCP on loopback pieces of 1
// MiB with 4 to 8 of them under way are the fastest (tests/unit/transport_ucx/bandwidth.cc measures
// it); 4 MiB cost a third, 64 KiB two thirds of that.
#pragma once

#include <cstdint>
#include <memory>

#include "base/result.h"
#include "transport/transport.h"

namespace lockstep::transport {

// How the two ends of a connection find each other.
enum class UcxWiring : std::uint8_t {
  // By IP address, at a listener. UCX may take its TCP, which accepts whoever reaches its ports and
  // writes what they send to where they say: for networks where everybody is trusted.
  kListener,
  // By addresses of UCX's workers, which the peers get from the coordinator: no port is open, and
  // UCX's TCP is left out. What is left reaches the same host, or wants RDMA.
  kAddresses,
};

// kUnavailable, with what UCX said, where it does not start; kInvalid for options that make no
// sense.
Result<std::unique_ptr<Transport>> MakeUcxTransport(Options options,
                                                    UcxWiring wiring = UcxWiring::kListener);

// By addresses, and only over RDMA: kUnavailable where UCX finds none here, and where `listen_host`
// is on the loopback device, since RDMA would open the process to the network all the same.
Result<std::unique_ptr<Transport>> MakeUcxRdmaTransport(Options options);

}  // namespace lockstep::transport
