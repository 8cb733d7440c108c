// The transport over UCX: RDMA where there is any, TCP otherwise. Between hosts and on one.
//
// A piece is a rendezvous active message: the peer that was asked offers it, and this end takes it
// straight into its destination or refuses, in which case nothing moves. UCX's own environment
// variables (UCX_TLS, UCX_NET_DEVICES, ...) choose the transports. Over TCP on loopback pieces of 1
// MiB with 4 to 8 of them under way are the fastest (tests/unit/transport_ucx/bandwidth.cc measures
// it); 4 MiB cost a third, 64 KiB two thirds of that.
#pragma once

#include <memory>

#include "base/result.h"
#include "transport/transport.h"

namespace lockstep::transport {

// kUnavailable, with what UCX said, where it does not start; kInvalid for options that make no
// sense.
Result<std::unique_ptr<Transport>> MakeUcxTransport(Options options);

}  // namespace lockstep::transport
