// What the doctor asks of CUDA, on a GPU.
#include <gtest/gtest.h>

#include <chrono>
#include <optional>
#include <utility>

#include "tools/doctor/cuda.h"

namespace lockstep::doctor {
namespace {

TEST(DoctorOnAGpu, DevicesHaveNamesMemoryAndAPlace) {
  const CudaFacts facts = AskCuda();
  EXPECT_TRUE(facts.built);
  EXPECT_EQ(facts.error, "");
  EXPECT_FALSE(facts.driver.empty());
  ASSERT_FALSE(facts.devices.empty());
  for (const CudaDevice& device : facts.devices) {
    EXPECT_FALSE(device.name.empty());
    EXPECT_GT(device.bytes, std::uint64_t{1} << 28);
    // "0000:3B:00.0"
    EXPECT_EQ(device.pci.size(), 12u) << device.pci;
    EXPECT_EQ(device.pci.rfind('.'), 10u) << device.pci;
  }
}

TEST(DoctorOnAGpu, CopiesHaveASpeed) {
  const Duration length = std::chrono::milliseconds(20);
  const int last = AskCuda().devices.back().ordinal;
  using Ends = std::pair<std::optional<int>, std::optional<int>>;
  for (const auto& [from, to] : {Ends{std::nullopt, 0}, Ends{0, std::nullopt}, Ends{0, last}}) {
    const auto copied = MeasureCopy(from, to, length);
    ASSERT_TRUE(copied.ok()) << copied.error().message;
    EXPECT_GT(copied->gb_per_second, 0);
    EXPECT_FALSE(copied->path.empty());
  }
}

TEST(DoctorOnAGpu, AGpuThatIsNotThereIsAnErrorAndNoMore) {
  EXPECT_FALSE(AllocateOn(99, 1024).ok());
  EXPECT_FALSE(UseDevice(99).ok());
  EXPECT_FALSE(MeasureCopy(99, std::nullopt, Duration(1)).ok());
  EXPECT_TRUE(AllocateOn(0, 1024).ok());
}

}  // namespace
}  // namespace lockstep::doctor
