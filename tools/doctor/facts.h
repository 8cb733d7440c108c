// The doctor's findings on a machine, before they are judged.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "transport/paths/machine.h"

namespace lockstep::doctor {

using transport::paths::Gid;
using transport::paths::Machine;
using transport::paths::NvidiaFacts;
using transport::paths::RdmaPort;

struct CudaDevice {
  int ordinal = 0;
  std::string name;
  std::uint64_t bytes = 0;
  std::string pci;  // "0000:3B:00.0"; empty: unknown
};

// The facts of the CUDA runtime; see cuda.h.
struct CudaFacts {
  bool built = false;
  std::string version;  // of the runtime in this build: "13.0"
  std::string driver;   // the newest CUDA that the driver knows; empty: not asked, or no driver
  std::string error;    // why the devices cannot be asked
  std::vector<CudaDevice> devices;
};

struct UcxWay {
  std::string transport;
  std::string device;
  bool rdma = false;
};

struct UcxFacts {
  bool built = false;
  std::string built_with;
  std::string version;  // empty: the library is missing, or is an unsupported one
  std::string library;  // its file
  std::string error;    // why it is missing or does not start
  std::vector<std::string> components;
  std::vector<UcxWay> ways;
  bool cuda_memory = false;
};

struct Limits {
  std::optional<std::uint64_t> locked_bytes;  // none: unlimited
  std::uint64_t files = 0;
  std::optional<std::uint64_t> shm_bytes;  // size of /dev/shm; none: it does not exist
  std::uint64_t shm_free = 0;
  std::string sealing_error;  // why no memory file can be sealed; empty: it can
  unsigned cores = 1;
  std::optional<double> cpu_quota;  // cores that the control group allows; none: all
};

// Bytes between two ends on this machine.
struct Bandwidth {
  std::string transport;        // "mapped", "tcp", "ucx", "ucx rc over mlx5_0:1"
  std::string memory = "host";  // where the bytes are: "host", "cuda:0"
  bool wants_rdma = false;      // the path must be one of RDMA
  bool copy = false;            // a copy by CUDA, without a transport
  std::string path;             // by the transport; empty: not measured
  double gb_per_second = 0;     // 1e9 bytes
  std::string error;            // why it was not measured
};

struct Facts {
  std::string version;  // of Lockstep
  Machine machine;
  CudaFacts cuda;
  UcxFacts ucx;
  std::vector<std::string> environment;  // UCX_*=..., sorted
  Limits limits;
  std::string congestion_control;  // of the kernel's TCP
  std::vector<Bandwidth> bandwidth;
};

}  // namespace lockstep::doctor
