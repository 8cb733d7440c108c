// Chooses the transports that a worker opens, by exchange.transport and the devices of its host. It
// is pure.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "transport/paths/machine.h"

namespace lockstep::transport::paths {

struct Choice {
  std::string name;   // the name by which it is offered and by which the job chooses it
  std::string maker;  // MakeTransport's name for it; empty: it is not opened
  std::string why;    // why it is not opened
};

// `wanted`: auto | ucx | tcp. UCX's `tcp` and its listener accept data from strangers. So auto
// takes UCX for RDMA alone, without both, and between hosts without RDMA our own TCP; `ucx` takes
// UCX with all that it finds. The best one is first.
std::vector<Choice> Choose(std::string_view wanted, const Machine& machine);

}  // namespace lockstep::transport::paths
