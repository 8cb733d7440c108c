// Finds the path that bytes take to a peer, the expected path, and the reason for a difference. It
// is pure: facts in, words out.
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

// Facts about a worker and its machine. They say nothing of the peer's machine: each worker reports
// its own end.
struct Facts {
  Machine machine;
  std::vector<std::string> environment;  // "UCX_TLS=rc,self"
  bool gpu = false;                      // gradients are computed on a GPU
  std::string gpu_pci;                   // its PCI address; empty: unknown
  bool device_exchange = false;          // peers read gradients out of the GPU's memory
  std::string no_ucx;  // why it could not be opened; empty: it was, or was not asked for
};

// The facts of this process's machine and environment.
Facts LookAround();

struct Link {
  PathReport path;  // the connection's
  bool mapped = false;
  bool same_host = false;
};

// The reason why something is missing, and the change that would help. Both are empty when nothing
// is missing.
struct Reason {
  std::string why;
  std::string remedy;
  explicit operator bool() const { return !why.empty(); }
  bool operator==(const Reason&) const = default;
};

struct Finding {
  Way had = Way::kTcp;
  Way expected = Way::kTcp;  // the best that this machine's devices should give
  std::string path;          // the link's path, with the way of a GPU's gradients
  Reason lacking;            // set when `expected` is better than `had`
  Reason advice;             // set when the path is the expected one and could be a shorter one
};
Finding Judge(const Facts& facts, const Capabilities& transport, const Link& link);

// The reason why the path is not GPUDirect RDMA.
Reason WhyNotGpuDirect(const Facts& facts, const Capabilities& transport, const Link& link);

// The reason why the transport takes no GPU memory.
Reason WhyNoGpuMemory(const Facts& facts, const Capabilities& transport);

// The reason why an RDMA device reaches no GPU memory, whatever the transport is able to.
// `ucx_version` is like "1.13.1".
Reason WhyNoGpuRegistration(const Machine& machine, const std::vector<std::string>& environment,
                            std::string_view ucx_version);

}  // namespace lockstep::transport::paths
