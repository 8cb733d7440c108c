// Tells people what a worker has open to others. Pure: facts in, words out.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"

namespace lockstep::worker {

struct OpenPorts {
  std::vector<std::string> tcp;  // of our own transport
  bool ucx_listens = false;      // UCX with a listener, over whatever it finds
  std::vector<std::string> ucx;  // the TCP ports that are then open
  bool rdma = false;             // UCX over RDMA alone, without a port
  std::string arena;             // the socket from which this worker's memory is mapped
};

// Whether a worker may listen at this address and name it to others (kInvalid: one line). Empty: it
// was not said, and is that of the way to the coordinator.
Status CheckDataHost(const std::string& host, bool has_secret);

// One line: each port, and who may connect there.
std::string Describe(const OpenPorts& open);

// Says what UCX with a listener means. `rdma`: this host has a port of RDMA that works.
std::string UcxWarning(const OpenPorts& open, bool rdma);

}  // namespace lockstep::worker
