// A machine's hardware for fast paths between workers: RDMA ports, GPUs, their places, and the
// loaded parts of NVIDIA's driver. It is read from /sys, /proc and /dev; `root` stands before every
// path, so that tests can have machines of their own.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::transport::paths {

// The way from the root of PCI down to a device, "pci0000:3a", "0000:3a:00.0", "0000:3b:00.0". An
// empty place is unknown, or not on PCI.
using PciPlace = std::vector<std::string>;

// The number of steps from the root that two places have in common; 0: they hang at different
// roots.
std::size_t SharedSteps(const PciPlace& a, const PciPlace& b);

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
  std::string address;     // of that interface, IPv4 if it has one; empty: none, or not asked for
  std::vector<Gid> gids;
  int numa_node = -1;  // -1: unknown or one node only
  PciPlace place;
  std::string nearest_gpu;  // its PCI address; empty: none below the same root of PCI

  std::string name() const;  // "mlx5_0:1"
  bool active() const { return state == "ACTIVE"; }
};

struct Gpu {
  std::string pci;  // "0000:3b:00.0"
  int numa_node = -1;
  PciPlace place;
  unsigned lanes = 0;      // of PCI Express, at present; 0: unknown
  unsigned max_lanes = 0;  // of the device at best
};

// The facts about NVIDIA's driver that are visible without CUDA.
struct NvidiaFacts {
  std::string driver;                // first line of its version; empty: none
  std::vector<std::string> devices;  // "/dev/nvidia0"
  bool peermem = false;      // nvidia_peermem (or its predecessors), by the files that UCX asks for
  bool open_driver = false;  // the open kernel modules, which can share memory by dma-buf
};

struct Machine {
  unsigned kernel_major = 0;
  unsigned kernel_minor = 0;
  NvidiaFacts nvidia;
  std::vector<Gpu> gpus;  // NVIDIA's
  std::vector<RdmaPort> rdma;
  bool rdma_device_files = false;  // /dev/infiniband/uverbs*

  bool AnyActivePort() const;
  // Whether GPU memory can be shared by dma-buf: that needs the open kernel modules and Linux 5.12.
  bool dmabuf() const;
};

Machine ReadMachine(const std::filesystem::path& root);

// The active ports that share the longest path from the root of PCI with this GPU. Without any at
// the same root, they are those of its NUMA node. Several ports may be equally near. `pci` is in
// either case, such as "0000:3B:00.0".
std::vector<const RdmaPort*> NearestPorts(const Machine& machine, std::string_view pci);

}  // namespace lockstep::transport::paths
