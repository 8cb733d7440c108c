// Which transports a worker opens, by exchange.transport and what its host has. Pure.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "transport/paths/machine.h"

namespace lockstep::transport::paths {

struct Choice {
  std::string name;   // by which it is offered, and the job's is chosen
  std::string maker;  // MakeTransport's name for it; empty: it is not opened
  std::string why;    // not
};

// `wanted`: auto | ucx | tcp. UCX's `tcp` and its listener take what strangers send, so auto takes
// UCX for RDMA alone, without both, and between hosts that have none our own TCP; ucx by its name
// is UCX with all that it finds. The best first.
std::vector<Choice> Choose(std::string_view wanted, const Machine& machine);

}  // namespace lockstep::transport::paths
