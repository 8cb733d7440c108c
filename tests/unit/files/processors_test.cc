// A container's quota counts as much as the processors that a process is held to.
#include "base/processors.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "base/control_groups.h"

namespace lockstep {
namespace {

class GroupsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = testing::TempDir() + "groups-XXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    root_ = pattern;
  }
  void TearDown() override { std::filesystem::remove_all(root_); }

  void Write(const std::string& file, const std::string& text) {
    std::filesystem::create_directories((root_ / file).parent_path());
    std::ofstream(root_ / file) << text;
  }
  // The smallest quota; 0: none.
  std::size_t Quota(const std::string& groups) {
    std::istringstream of_process(groups);
    std::size_t least = 0;
    ForEachControlGroup(of_process, root_, "cpu", [&](const ControlGroup& group) {
      const std::size_t quota = QuotaProcessors(group);
      if (quota > 0 && (least == 0 || quota < least)) least = quota;
    });
    return least;
  }

  std::filesystem::path root_;
};

TEST_F(GroupsTest, TheOwnAndAllAboveInVersionTwo) {
  std::istringstream of_process("0::/a/b\n");
  std::vector<std::filesystem::path> seen;
  ForEachControlGroup(of_process, root_, "memory", [&](const ControlGroup& group) {
    EXPECT_TRUE(group.v2);
    seen.push_back(group.folder.lexically_normal());
  });
  ASSERT_EQ(seen.size(), 3u);
  EXPECT_EQ(seen[0], root_ / "a/b");
  EXPECT_EQ(seen[1], root_ / "a");
}

TEST_F(GroupsTest, ThoseOfTheControllerInVersionOne) {
  std::istringstream of_process("5:cpu,cpuacct:/job\n3:memory:/job\nnonsense\n");
  std::vector<std::filesystem::path> seen;
  ForEachControlGroup(of_process, root_, "cpu", [&](const ControlGroup& group) {
    EXPECT_FALSE(group.v2);
    seen.push_back(group.folder.lexically_normal());
  });
  ASSERT_EQ(seen.size(), 2u);
  EXPECT_EQ(seen[0], root_ / "cpu/job");
}

TEST_F(GroupsTest, AQuotaIsRoundedUp) {
  Write("a/b/cpu.max", "max 100000\n");
  Write("a/cpu.max", "250000 100000\n");
  EXPECT_EQ(Quota("0::/a/b\n"), 3u);
  Write("a/b/cpu.max", "50000 100000\n");
  EXPECT_EQ(Quota("0::/a/b\n"), 1u);
  Write("cpu/job/cpu.cfs_quota_us", "400000\n");
  Write("cpu/job/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(Quota("4:cpu:/job\n"), 4u);
}

TEST_F(GroupsTest, NoQuotaAndNonsenseDoNotLimit) {
  EXPECT_EQ(Quota("0::/a\n"), 0u);
  for (const char* text : {"max 100000\n", "", "x y\n", "100000 0\n", "-1 100000\n", "100000\n"}) {
    Write("a/cpu.max", text);
    EXPECT_EQ(Quota("0::/a\n"), 0u) << text;
  }
  Write("cpu/job/cpu.cfs_quota_us", "-1\n");
  Write("cpu/job/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(Quota("4:cpu:/job\n"), 0u);
}

TEST(Processors, AreCountedInTheKernelsLists) {
  EXPECT_EQ(ListedProcessors("\t0"), 1u);
  EXPECT_EQ(ListedProcessors("0-1"), 2u);
  EXPECT_EQ(ListedProcessors("0-3,8,10-11\n"), 7u);
  for (const char* list : {"", "x", "-", "3-1", "3-", "4-x"}) EXPECT_EQ(ListedProcessors(list), 0u);
}

TEST(Processors, AreThoseThatTheThreadMayRunOn) {
  EXPECT_GE(UsableProcessors(), 1u);
  std::size_t held = 0;
  std::thread([&] {  // the affinity is a thread's
    cpu_set_t all;
    ASSERT_EQ(sched_getaffinity(0, sizeof all, &all), 0);
    cpu_set_t one;
    CPU_ZERO(&one);
    for (int cpu = 0; cpu < CPU_SETSIZE && CPU_COUNT(&one) == 0; ++cpu) {
      if (CPU_ISSET(cpu, &all)) CPU_SET(cpu, &one);
    }
    ASSERT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
    held = UsableProcessors();
  })
      .join();
  EXPECT_EQ(held, 1u);
}

}  // namespace
}  // namespace lockstep
