// A way of UCX to reach a peer.
#pragma once

#include <string>

namespace lockstep::transport::ucx {

// A transport and a device that it works over.
struct Way {
  std::string transport;  // by UCX's name: "tcp", "rc_verbs"
  std::string device;     // "eth0", "mlx5_0:1"
  bool rdma = false;
  bool operator==(const Way&) const = default;
};

}  // namespace lockstep::transport::ucx
