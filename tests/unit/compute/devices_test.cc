// Holds with CUDA and without, on machines with GPUs and without.
#include "worker/compute/devices.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

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

}  // namespace
}  // namespace lockstep::worker
