// Tells which path bytes take to a peer, which one was to be expected, and why it is not that one.
// Pure: facts in, words out.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "transport/paths/machine.h"
#include "transport/transport.h"

namespace lockstep::transport::paths {

enum class Way : std::uint8_t {
  kTcp,
  kUcxWithoutRdma,  // TCP, or shared memory
  kRdma,            // between the hosts' memories
  kGpuDirect,       // RDMA that reads and writes the GPU's memory itself
  kMapped,
};
std::string_view Name(Way way);

// A worker and its machine. It says nothing of the peer's: each worker speaks of its own end.
struct Facts {
  Machine machine;
  std::vector<std::string> environment;  // "UCX_TLS=rc,self"
  bool gpu = false;                      // gradients are computed on a GPU
  std::string gpu_pci;                   // its PCI address; empty: unknown
  bool device_exchange = false;          // peers read gradients out of the GPU's memory
  std::string no_ucx;  // why it could not be opened; empty: it was, or was not asked for
};

// Of this process's machine and environment.
Facts LookAround();

struct Link {
  PathReport path;  // the connection's
  bool mapped = false;
  bool same_host = false;
};

// Why something is not, and what would change that. Both empty: it is.
struct Reason {
  std::string why;
  std::string remedy;
  explicit operator bool() const { return !why.empty(); }
  bool operator==(const Reason&) const = default;
};

struct Finding {
  Way had = Way::kTcp;
  Way expected = Way::kTcp;  // the best that this machine's devices should give
  std::string path;          // the link's, with what happens to gradients of a GPU
  Reason lacking;            // set when `expected` is better than `had`
  Reason advice;             // set when the path is the expected one and could be a shorter one
};
Finding Judge(const Facts& facts, const Capabilities& transport, const Link& link);

// Why the path is not GPUDirect RDMA.
Reason WhyNotGpuDirect(const Facts& facts, const Capabilities& transport, const Link& link);

// Why the transport takes no GPU memory.
Reason WhyNoGpuMemory(const Facts& facts, const Capabilities& transport);

// Why an RDMA device reaches no GPU memory, whatever the transport is able to. `ucx_version` as
// "1.13.1".
Reason WhyNoGpuRegistration(const Machine& machine, const std::vector<std::string>& environment,
                            std::string_view ucx_version);

}  // namespace lockstep::transport::paths
