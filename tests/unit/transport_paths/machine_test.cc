// What is read out of /sys, /proc and /dev, with machines made of files.
#include "transport/paths/machine.h"

#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>

#include "tests/temp_folder.h"
#include "transport/paths/files.h"

namespace lockstep::transport::paths {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

class MachineTest : public ::testing::Test {
 protected:
  void Write(const std::string& path, const std::string& text) {
    const fs::path file = fs::path(root_.path()) / path;
    fs::create_directories(file.parent_path());
    std::ofstream(file) << text << "\n";
  }
  void Link(const std::string& path, const std::string& to) {
    const fs::path link = fs::path(root_.path()) / path;
    fs::create_directories(link.parent_path());
    fs::create_directories(fs::path(root_.path()) / to);
    fs::create_symlink(fs::path(root_.path()) / to, link);
  }
  void Gpu(const std::string& address, const std::string& place, int numa = 0) {
    Write(place + "/vendor", "0x10de");
    Write(place + "/class", "0x030200");
    Write(place + "/numa_node", std::to_string(numa));
    Link("sys/bus/pci/devices/" + address, place);
  }
  void Nic(const std::string& name, const std::string& place, int numa = 1) {
    Write(place + "/numa_node", std::to_string(numa));
    Link("sys/class/infiniband/" + name + "/device", place);
    const std::string port = "sys/class/infiniband/" + name + "/ports/1/";
    Write(port + "state", "4: ACTIVE");
    Write(port + "link_layer", "Ethernet");
    Write(port + "rate", "100 Gb/sec (4X EDR)");
    Write(port + "gids/0", "fe80:0000:0000:0000:5054:00ff:fe00:0001");
    Write(port + "gids/1", "0000:0000:0000:0000:0000:ffff:c0a8:4d01");
    Write(port + "gids/2", "0000:0000:0000:0000:0000:0000:0000:0000");
    Write(port + "gid_attrs/types/0", "IB/RoCE v1");
    Write(port + "gid_attrs/types/1", "RoCE v2");
    Write(port + "gid_attrs/ndevs/0", "ens1");
  }
  Machine Read() const { return ReadMachine(root_.path()); }
  std::vector<std::string> Nearest(const std::string& gpu) const {
    const Machine machine = Read();
    std::vector<std::string> names;
    for (const RdmaPort* port : NearestPorts(machine, gpu)) names.push_back(port->name());
    return names;
  }

  test::TempFolder root_;
};

TEST_F(MachineTest, NothingThereIsNothing) {
  const Machine machine = Read();
  EXPECT_TRUE(machine.rdma.empty());
  EXPECT_TRUE(machine.gpus.empty());
  EXPECT_FALSE(machine.rdma_device_files);
  EXPECT_TRUE(machine.nvidia.driver.empty());
  EXPECT_FALSE(machine.AnyActivePort());
  EXPECT_FALSE(machine.dmabuf());
  EXPECT_THAT(NearestPorts(machine, "0000:3c:00.0"), IsEmpty());
}

TEST_F(MachineTest, AnRdmaPortWithItsNearestGpu) {
  Gpu("0000:1b:00.0", "sys/devices/pci0000:17/0000:17:00.0/0000:1b:00.0");
  Gpu("0000:3c:00.0", "sys/devices/pci0000:3a/0000:3a:00.0/0000:3b:01.0/0000:3c:00.0");
  Gpu("0000:3f:00.0", "sys/devices/pci0000:3a/0000:3a:02.0/0000:3f:00.0");
  Nic("mlx5_0", "sys/devices/pci0000:3a/0000:3a:00.0/0000:3b:00.0/0000:3d:00.0");
  const Machine machine = Read();
  ASSERT_EQ(machine.rdma.size(), 1u);
  const RdmaPort& port = machine.rdma[0];
  EXPECT_EQ(port.name(), "mlx5_0:1");
  EXPECT_TRUE(port.active());
  EXPECT_EQ(port.link_layer, "Ethernet");
  EXPECT_EQ(port.rate, "100 Gb/sec (4X EDR)");
  EXPECT_EQ(port.netdev, "ens1");
  EXPECT_EQ(port.numa_node, 1);
  EXPECT_EQ(port.nearest_gpu, "0000:3c:00.0");
  ASSERT_EQ(port.gids.size(), 2u);
  EXPECT_EQ(port.gids[1].index, 1u);
  EXPECT_EQ(port.gids[1].type, "RoCE v2");
}

TEST_F(MachineTest, LanesOfAGpu) {
  const std::string place = "sys/devices/pci0000:17/0000:17:00.0/0000:1b:00.0";
  Gpu("0000:1b:00.0", place);
  EXPECT_EQ(Read().gpus.at(0).max_lanes, 0u);
  Write(place + "/current_link_width", "4");
  Write(place + "/max_link_width", "16");
  EXPECT_EQ(Read().gpus.at(0).lanes, 4u);
  EXPECT_EQ(Read().gpus.at(0).max_lanes, 16u);
}

TEST_F(MachineTest, AGpuBelowAnotherRootOfPciIsNotNear) {
  Gpu("0000:1b:00.0", "sys/devices/pci0000:17/0000:17:00.0/0000:1b:00.0");
  Nic("mlx5_0", "sys/devices/pci0000:3a/0000:3a:00.0/0000:3b:00.0");
  EXPECT_EQ(Read().rdma.at(0).nearest_gpu, "");
  EXPECT_THAT(Nearest("0000:1b:00.0"), IsEmpty());
}

TEST_F(MachineTest, ThePortWithMostOfTheWayInCommonIsTheNearest) {
  Gpu("0000:3c:00.0", "sys/devices/pci0000:3a/0000:3a:00.0/0000:3b:01.0/0000:3c:00.0");
  Nic("mlx5_0", "sys/devices/pci0000:3a/0000:3a:02.0/0000:3f:00.0");
  Nic("mlx5_1", "sys/devices/pci0000:3a/0000:3a:00.0/0000:3b:00.0/0000:3d:00.0");
  Nic("mlx5_2", "sys/devices/pci0000:17/0000:17:00.0/0000:1b:00.0", 0);
  EXPECT_THAT(Nearest("0000:3c:00.0"), ElementsAre("mlx5_1:1"));
  // As CUDA writes it.
  EXPECT_THAT(Nearest("0000:3C:00.0"), ElementsAre("mlx5_1:1"));
  EXPECT_THAT(Nearest("0000:99:00.0"), IsEmpty());
  // Two that are equally near.
  Nic("mlx5_3", "sys/devices/pci0000:3a/0000:3a:00.0/0000:3b:00.0/0000:3d:00.1");
  EXPECT_THAT(Nearest("0000:3c:00.0"), ElementsAre("mlx5_1:1", "mlx5_3:1"));
  // One that is down is none.
  Write("sys/class/infiniband/mlx5_1/ports/1/state", "1: DOWN");
  EXPECT_THAT(Nearest("0000:3c:00.0"), ElementsAre("mlx5_3:1"));
}

TEST_F(MachineTest, WithoutACommonRootTheNumaNodeDecides) {
  Gpu("0000:1b:00.0", "sys/devices/pci0000:17/0000:17:00.0/0000:1b:00.0", 1);
  Nic("mlx5_0", "sys/devices/pci0000:3a/0000:3a:00.0/0000:3b:00.0", 0);
  Nic("mlx5_1", "sys/devices/pci0000:5a/0000:5a:00.0/0000:5b:00.0", 1);
  EXPECT_THAT(Nearest("0000:1b:00.0"), ElementsAre("mlx5_1:1"));
}

TEST_F(MachineTest, ADeviceThatHangsOnNothing) {
  Nic("rxe0", "sys/devices/virtual/net/dummy0");
  Gpu("0000:1b:00.0", "sys/devices/pci0000:17/0000:17:00.0/0000:1b:00.0", -1);
  EXPECT_TRUE(Read().rdma.at(0).place.empty());
  EXPECT_THAT(Nearest("0000:1b:00.0"), IsEmpty());
  fs::remove(fs::path(root_.path()) / "sys/class/infiniband/rxe0/device");
  EXPECT_TRUE(Read().rdma.at(0).place.empty());
}

TEST_F(MachineTest, DeviceFiles) {
  Write("dev/infiniband/rdma_cm", "");
  EXPECT_FALSE(Read().rdma_device_files);
  Write("dev/infiniband/uverbs0", "");
  EXPECT_TRUE(Read().rdma_device_files);
}

TEST_F(MachineTest, NvidiasDriver) {
  Write("proc/driver/nvidia/version",
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.1\nGCC version: 12");
  for (const char* name : {"nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"}) {
    Write(std::string("dev/") + name, "");
  }
  const NvidiaFacts nvidia = Read().nvidia;
  EXPECT_EQ(nvidia.driver, "NVIDIA UNIX Open Kernel Module for x86_64  580.1");
  EXPECT_EQ(nvidia.devices, (std::vector<std::string>{"/dev/nvidia0", "/dev/nvidia1"}));
  EXPECT_TRUE(nvidia.open_driver);
  EXPECT_FALSE(nvidia.peermem);
}

TEST_F(MachineTest, TheModuleIsSeenByTheFilesThatUcxAsksFor) {
  for (const char* file : {"sys/module/nvidia_peermem/version", "sys/module/nv_peer_mem/version",
                           "sys/kernel/mm/memory_peers/nv_mem/version"}) {
    EXPECT_FALSE(Read().nvidia.peermem);
    Write(file, "1.0");
    EXPECT_TRUE(Read().nvidia.peermem) << file;
    fs::remove(fs::path(root_.path()) / file);
  }
}

TEST_F(MachineTest, DmaBufTakesOpenModulesAndLinux512) {
  const auto dmabuf = [this](const char* release) {
    Write("proc/sys/kernel/osrelease", release);
    return Read().dmabuf();
  };
  EXPECT_FALSE(dmabuf("6.1.0-18-amd64"));
  Write("proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX Open Kernel Module 580.1");
  EXPECT_TRUE(dmabuf("6.1.0-18-amd64"));
  EXPECT_TRUE(dmabuf("5.12"));
  EXPECT_FALSE(dmabuf("5.11.9"));
  EXPECT_FALSE(dmabuf("5.4.0"));
  EXPECT_FALSE(dmabuf("nonsense"));
  EXPECT_FALSE(dmabuf("99999999999999999999.1"));
}

TEST_F(MachineTest, WhatStandsInTheFilesIsNotTrusted) {
  Nic("mlx5_0", "sys/devices/pci0000:3a/0000:3a:00.0/0000:3b:00.0");
  const std::string port = "sys/class/infiniband/mlx5_0/ports/1/";
  Write(port + "rate", std::string(1u << 20, 'x'));
  Write(port + "state", "4: ACT\x1b[31mIVE");
  Write("sys/devices/pci0000:3a/0000:3a:00.0/0000:3b:00.0/numa_node", "1; rm");
  Write("sys/class/infiniband/mlx5_0/ports/many/state", "");
  const Machine machine = Read();
  ASSERT_EQ(machine.rdma.size(), 2u);
  EXPECT_EQ(machine.rdma[0].rate.size(), 4096u);
  EXPECT_EQ(machine.rdma[0].state, "ACT?[31mIVE");
  EXPECT_EQ(machine.rdma[0].numa_node, -1);
  EXPECT_EQ(machine.rdma[1].port, 0u);
}

TEST_F(MachineTest, EntriesInTheOrderOfTheirNumbers) {
  for (const char* name : {"10", "9", "1", "a"}) Write(std::string("d/") + name, "");
  std::vector<std::string> names;
  for (const fs::path& entry : Entries(fs::path(root_.path()) / "d")) {
    names.push_back(entry.filename());
  }
  EXPECT_THAT(names, ElementsAre("1", "9", "10", "a"));
}

}  // namespace
}  // namespace lockstep::transport::paths
