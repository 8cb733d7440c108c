// Holds with CUDA and without, on machines with GPUs and without.
#include "worker/compute/devices.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "worker/compute/compute.h"
#include "worker/compute/cuda/cuda_compute.h"

namespace lockstep::worker {
namespace {

using testing::HasSubstr;
using testing::Not;

TEST(Devices, TheCpuIsAlwaysThere) {
  EXPECT_TRUE(CheckDevice("cpu").ok());
  auto cpu = MakeCompute("cpu", "bf16");
  ASSERT_TRUE(cpu.ok());
  EXPECT_EQ((*cpu)->name(), "cpu");
  EXPECT_EQ((*cpu)->host_link(), nullptr);
}

TEST(Devices, UnknownOnesAreNamedWithWhatThereIs) {
  for (const std::string name : {"gpu", "cuda:", "cuda:x", "cuda:-1", "cuda:1x", "cuda0", ""}) {
    const Status status = CheckDevice(name);
    ASSERT_FALSE(status.ok()) << name;
    EXPECT_EQ(status.error().message, name + ": no such device (there is cpu)");
    EXPECT_FALSE(MakeCompute(name, "fp32").ok());
  }
}

TEST(Devices, AGpuThatIsNotThereIsRefusedInOneLine) {
  const Status status = CheckDevice("cuda:4095");
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, ErrorCode::kInvalid);
  EXPECT_THAT(status.error().message, HasSubstr("cuda:4095: "));
  EXPECT_THAT(status.error().message, HasSubstr("there is cpu"));
  EXPECT_THAT(status.error().message, Not(HasSubstr("\n")));
  const Result<int> count = CudaDeviceCount();
  if (!count) {
    EXPECT_THAT(status.error().message, HasSubstr(count.error().message));
    EXPECT_FALSE(CheckDevice("cuda").ok());
    EXPECT_FALSE(MakeCompute("cuda:0", "fp32").ok());
  } else {
    EXPECT_TRUE(CheckDevice("cuda").ok());
    EXPECT_THAT(status.error().message, HasSubstr("cuda:0"));
  }
}

#ifndef LOCKSTEP_SANITIZED  // whose shadow takes more address space than there could be

// It would ask for it for ever, at the first product.
TEST(DevicesDeathTest, ACpuWithoutAddressSpaceForOpenBlasIsRefused) {
  const auto make = [] {
    constexpr rlim_t kBytes = rlim_t{100} << 20;
    const rlimit limit{kBytes, kBytes};
    setrlimit(RLIMIT_AS, &limit);
    try {
      std::fprintf(stderr, "made: %d", static_cast<int>(MakeCompute("cpu", "fp32").ok()));
    } catch (const DeviceError& error) {
      std::fprintf(stderr, "%s", error.what());
      std::_Exit(3);
    }
    std::_Exit(0);
  };
  EXPECT_EXIT(make(), testing::ExitedWithCode(3), "^no 160 MiB of address space for OpenBLAS: ");
}

#endif

}  // namespace
}  // namespace lockstep::worker
