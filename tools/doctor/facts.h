// What the doctor found on a machine, before anybody judges it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace lockstep::doctor {

struct Gid {
  unsigned index = 0;
  std::string gid;
  std::string type;  // "RoCE v2", "IB/RoCE v1"
};

// A port of an RDMA device.
struct RdmaPort {
  std::string device;
  unsigned port = 1;
  std::string state;       // "ACTIVE"
  std::string link_layer;  // "InfiniBand", "Ethernet" for RoCE
  std::string rate;        // "100 Gb/sec (4X EDR)"
  std::string netdev;      // the network interface of the same port; may be unknown
  std::string address;     // of that interface, IPv4 if it has one; empty: none
  std::vector<Gid> gids;
  int numa_node = -1;       // -1: unknown or one node only
  std::string nearest_gpu;  // its PCI address; empty: none below the same root of PCI
};

struct CudaDevice {
  int ordinal = 0;
  std::string name;
  std::uint64_t bytes = 0;
};

// What the CUDA runtime says; see cuda.h.
struct CudaFacts {
  bool built = false;
  std::string version;  // of the runtime that this was built with
  std::string error;    // why the devices cannot be asked
  std::vector<CudaDevice> devices;
};

// What can be seen of NVIDIA's driver without CUDA.
struct NvidiaFacts {
  std::string driver;                // first line of its version; empty: none
  std::vector<std::string> devices;  // "/dev/nvidia0"
  bool peermem = false;              // the kernel module nvidia_peermem
  bool open_driver = false;          // the open kernel modules, which can share memory by dma-buf
};

struct UcxWay {
  std::string transport;
  std::string device;
  bool rdma = false;
};

struct UcxFacts {
  bool built = false;
  std::string built_with;
  std::string version;
  std::string error;
  std::vector<std::string> components;
  std::vector<UcxWay> ways;
  bool cuda_memory = false;
};

struct Limits {
  std::optional<std::uint64_t> locked_bytes;  // none: unlimited
  std::uint64_t files = 0;
  std::optional<std::uint64_t> shm_bytes;  // of /dev/shm; none: there is none
  std::uint64_t shm_free = 0;
  std::string sealing_error;  // why no memory file can be sealed; empty: it can
  unsigned cores = 1;
  std::optional<double> cpu_quota;  // cores that the control group allows; none: all
};

// Bytes between two ends on this machine.
struct Bandwidth {
  std::string transport;     // "mapped", "tcp", "ucx", "ucx rc over mlx5_0:1"
  bool wants_rdma = false;   // the path has to be one of RDMA
  std::string path;          // as the transport says it; empty: not measured
  double gb_per_second = 0;  // 1e9 bytes
  std::string error;         // why it was not measured
};

struct Facts {
  std::string version;  // of Lockstep
  unsigned kernel_major = 0;
  unsigned kernel_minor = 0;
  CudaFacts cuda;
  NvidiaFacts nvidia;
  UcxFacts ucx;
  std::vector<std::string> environment;  // UCX_*=..., sorted
  std::vector<RdmaPort> rdma;
  bool rdma_device_files = false;  // /dev/infiniband/uverbs*
  Limits limits;
  std::string congestion_control;  // of the kernel's TCP
  std::vector<Bandwidth> bandwidth;
};

}  // namespace lockstep::doctor
