// What is read out of /sys and /proc, with machines made of files.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "tests/temp_folder.h"
#include "tools/doctor/collect.h"

namespace lockstep::doctor {
namespace {

namespace fs = std::filesystem;

class CollectTest : public ::testing::Test {
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
  void Gpu(const std::string& address, const std::string& place) {
    Write(place + "/vendor", "0x10de");
    Write(place + "/class", "0x030200");
    Link("sys/bus/pci/devices/" + address, place);
  }
  void Nic(const std::string& name, const std::string& place) {
    Write(place + "/numa_node", "1");
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
  fs::path root() const { return root_.path(); }

  test::TempFolder root_;
};

TEST_F(CollectTest, NothingThereIsNothing) {
  EXPECT_TRUE(ReadRdma(root()).empty());
  EXPECT_FALSE(HasRdmaDeviceFiles(root()));
  EXPECT_TRUE(ReadNvidia(root()).driver.empty());
  EXPECT_FALSE(ReadCpuQuota(root()));
  EXPECT_EQ(ReadCongestionControl(root()), "");
}

TEST_F(CollectTest, AnRdmaPortWithItsNearestGpu) {
  Gpu("0000:1b:00.0", "sys/devices/pci0000:17/0000:17:00.0/0000:1b:00.0");
  Gpu("0000:3c:00.0", "sys/devices/pci0000:3a/0000:3a:00.0/0000:3b:01.0/0000:3c:00.0");
  Gpu("0000:3f:00.0", "sys/devices/pci0000:3a/0000:3a:02.0/0000:3f:00.0");
  Nic("mlx5_0", "sys/devices/pci0000:3a/0000:3a:00.0/0000:3b:00.0/0000:3d:00.0");
  const auto ports = ReadRdma(root());
  ASSERT_EQ(ports.size(), 1u);
  const RdmaPort& port = ports[0];
  EXPECT_EQ(port.device, "mlx5_0");
  EXPECT_EQ(port.port, 1u);
  EXPECT_EQ(port.state, "ACTIVE");
  EXPECT_EQ(port.link_layer, "Ethernet");
  EXPECT_EQ(port.rate, "100 Gb/sec (4X EDR)");
  EXPECT_EQ(port.netdev, "ens1");
  EXPECT_EQ(port.numa_node, 1);
  EXPECT_EQ(port.nearest_gpu, "0000:3c:00.0");
  ASSERT_EQ(port.gids.size(), 2u);
  EXPECT_EQ(port.gids[1].index, 1u);
  EXPECT_EQ(port.gids[1].type, "RoCE v2");
}

TEST_F(CollectTest, AGpuBelowAnotherRootOfPciIsNotNear) {
  Gpu("0000:1b:00.0", "sys/devices/pci0000:17/0000:17:00.0/0000:1b:00.0");
  Nic("mlx5_0", "sys/devices/pci0000:3a/0000:3a:00.0/0000:3b:00.0");
  EXPECT_EQ(ReadRdma(root()).at(0).nearest_gpu, "");
}

TEST_F(CollectTest, DeviceFiles) {
  Write("dev/infiniband/rdma_cm", "");
  EXPECT_FALSE(HasRdmaDeviceFiles(root()));
  Write("dev/infiniband/uverbs0", "");
  EXPECT_TRUE(HasRdmaDeviceFiles(root()));
}

TEST_F(CollectTest, NvidiasDriver) {
  Write("proc/driver/nvidia/version",
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.1\nGCC version: 12");
  for (const char* name : {"nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"}) {
    Write(std::string("dev/") + name, "");
  }
  NvidiaFacts nvidia = ReadNvidia(root());
  EXPECT_EQ(nvidia.driver, "NVIDIA UNIX Open Kernel Module for x86_64  580.1");
  EXPECT_EQ(nvidia.devices, (std::vector<std::string>{"/dev/nvidia0", "/dev/nvidia1"}));
  EXPECT_TRUE(nvidia.open_driver);
  EXPECT_FALSE(nvidia.peermem);
  Write("sys/module/nvidia_peermem/refcnt", "0");
  EXPECT_TRUE(ReadNvidia(root()).peermem);
}

TEST_F(CollectTest, TheTightestQuotaOfTheControlGroups) {
  Write("proc/self/cgroup", "0::/job.slice/worker");
  Write("sys/fs/cgroup/job.slice/worker/cpu.max", "max 100000");
  EXPECT_FALSE(ReadCpuQuota(root()));
  Write("sys/fs/cgroup/job.slice/cpu.max", "250000 100000");
  EXPECT_EQ(ReadCpuQuota(root()), 2.5);
  Write("sys/fs/cgroup/job.slice/worker/cpu.max", "150000 100000");
  EXPECT_EQ(ReadCpuQuota(root()), 1.5);
}

TEST_F(CollectTest, AQuotaOfTheOlderControlGroups) {
  Write("proc/self/cgroup", "9:memory:/docker/4f\n4:cpu,cpuacct:/docker/4f");
  // The path is the host's; the container sees its own group as the root.
  Write("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "50000");
  Write("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000");
  EXPECT_EQ(ReadCpuQuota(root()), 0.5);
  Write("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1");
  EXPECT_FALSE(ReadCpuQuota(root()));
}

}  // namespace
}  // namespace lockstep::doctor
