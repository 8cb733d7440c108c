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
  fs::path root() const { return root_.path(); }

  test::TempFolder root_;
};

TEST_F(CollectTest, NothingThereIsNothing) {
  EXPECT_FALSE(ReadCpuQuota(root()));
  EXPECT_EQ(ReadCongestionControl(root()), "");
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
