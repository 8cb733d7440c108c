// What a worker has open to others, for people. Pure: facts in, words out.
#pragma once

#include <string>
#include <vector>

namespace lockstep::worker {

struct OpenPorts {
  std::vector<std::string> tcp;  // of our own transport
  bool ucx_listens = false;      // UCX with a listener, over whatever it finds
  std::vector<std::string> ucx;  // the TCP ports that are then open
  bool rdma = false;             // UCX over RDMA alone, without a port
  std::string arena;             // the socket from which this worker's memory is mapped
};

// One line: each port, and who may connect there.
std::string Describe(const OpenPorts& open);

// What UCX with a listener means. `rdma`: this host has a port of RDMA that works.
std::string UcxWarning(const OpenPorts& open, bool rdma);

}  // namespace lockstep::worker
