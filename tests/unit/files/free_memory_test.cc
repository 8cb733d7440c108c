#include "base/free_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <boost/asio/thread_pool.hpp>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <memory>
#include <system_error>
#include <thread>
#include <vector>

namespace lockstep {
namespace {

TEST(FreeMemory, IsLessThanWhatNoMachineHas) {
  EXPECT_GT(FreeMemoryBytes(), 0u);
  EXPECT_TRUE(CheckMemory(1, "a byte").ok());
  const Status status = CheckMemory(std::numeric_limits<std::uint64_t>::max(), "everything");
  // Where nothing can be read nothing is limited.
  if (FreeMemoryBytes() == std::numeric_limits<std::uint64_t>::max()) {
    GTEST_SKIP() << "no limit of memory can be read here";
  }
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, ErrorCode::kUnavailable);
  EXPECT_THAT(status.error().message,
              testing::StartsWith("everything of 18446744073709551615 bytes does not fit into"));
}

TEST(ResidentMemory, GrowsWithWhatIsWritten) {
  constexpr std::size_t kBytes = std::size_t{64} << 20;
  const std::uint64_t before = ResidentBytes();
  ASSERT_GT(before, 0u);
  const std::vector<char> written(kBytes, 'x');
  EXPECT_GE(ResidentBytes(), before + written.size() / 2);  // another thread may give some back
}

#ifndef LOCKSTEP_SANITIZED  // whose shadow takes more address space than there could be

constexpr std::uint64_t kAddressSpace = std::uint64_t{1} << 30;

void LimitAddressSpace() {
  rlimit limit{};
  limit.rlim_cur = limit.rlim_max = kAddressSpace;
  setrlimit(RLIMIT_AS, &limit);
}

TEST(FreeMemoryDeathTest, TheLimitOnAddressSpaceCounts) {
  const auto look = [] {
    LimitAddressSpace();
    const bool below = FreeMemoryBytes() < kAddressSpace;
    std::_Exit(below && !CheckMemory(kAddressSpace, "too much").ok() ? 0 : 1);
  };
  EXPECT_EXIT(look(), testing::ExitedWithCode(0), "");
}

TEST(FreeMemoryDeathTest, WhenThereIsNoneAProgramEndsWithALine) {
  const auto take_all = [] {
    LimitAddressSpace();
    EndWhenOutOfResources("lockstep-test");
    std::thread([] {
      std::unique_ptr<char[]> all(new char[std::size_t{1} << 31]);
      std::fprintf(stderr, "%p", static_cast<void*>(all.get()));
    }).join();
  };
  EXPECT_EXIT(take_all(), testing::ExitedWithCode(1), "^lockstep-test: out of memory\n$");
}

TEST(FreeMemoryDeathTest, WhenNoThreadCanBeStartedAProgramEndsWithALine) {
  const auto start_many = []() noexcept {
    LimitAddressSpace();
    EndWhenOutOfResources("lockstep-test");
    // A stack takes 8 MiB of the address space, or what else the limit on it says.
    for (int i = 0; i < 100000; ++i) std::thread([] { ::pause(); }).detach();
  };
  EXPECT_EXIT(start_many(), testing::ExitedWithCode(1),
              "^lockstep-test: cannot start a thread: .*\n$");
}

// It says so with an exception of its own.
TEST(FreeMemoryDeathTest, WhenAsioCannotStartAThreadAProgramEndsWithALine) {
  const auto start_many = []() noexcept {
    LimitAddressSpace();
    EndWhenOutOfResources("lockstep-test");
    try {
      for (int i = 0; i < 100000; ++i) std::thread([] { ::pause(); }).detach();
    } catch (const std::system_error&) {  // all there are
    }
    const boost::asio::thread_pool pool(1);
  };
  EXPECT_EXIT(start_many(), testing::ExitedWithCode(1),
              "^lockstep-test: cannot start a thread: .*\n$");
}

#endif

}  // namespace
}  // namespace lockstep
