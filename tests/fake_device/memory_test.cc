// What the tests with the imitated device rely on.
#include <gtest/gtest.h>

#include <csignal>
#include <cstring>
#include <vector>

#include "tests/fake_device/fake_device.h"

namespace lockstep::worker {
namespace {

TEST(FakeDeviceDeathTest, TheHostCannotTouchItsMemory) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  FakeAddresses addresses;
  auto* device = reinterpret_cast<float*>(addresses.Allocate(64));
  *addresses.Host(device, 1) = 3;
  volatile float value = 0;
  // A sanitizer would catch the signal and end the process in its own way.
  const auto touch = [&](auto&& how) {
    std::signal(SIGSEGV, SIG_DFL);
    how();
  };
  const testing::KilledBySignal died(SIGSEGV);
  EXPECT_EXIT(touch([&] { value = *device; }), died, "");
  EXPECT_EXIT(touch([&] { *device = value; }), died, "");
  EXPECT_DEATH(addresses.Host(device, 17), "not the device's memory");
  addresses.Free(device);
}

TEST(FakeDevice, DoesWhatItIsAskedWhenSomebodyWaits) {
  const auto addresses = std::make_shared<FakeAddresses>();
  const auto memory = MakeFakeMemory(addresses);
  const std::vector<float> values = {1, 2, 3, 4};
  auto* a = reinterpret_cast<float*>(*memory->Allocate(16));
  auto* sum = reinterpret_cast<float*>(*memory->Allocate(16));
  memory->FromHost(a, values.data(), 16);
  const Input input{a, 2};
  memory->WeightedSum({&input, 1}, sum, 4, /*large=*/false);
  std::vector<float> found(4, -1);
  memory->ToHost(found.data(), sum, 16);
  EXPECT_EQ(found, std::vector<float>(4, 0));
  memory->Finish();
  memory->ToHost(found.data(), sum, 16);
  EXPECT_EQ(found, (std::vector<float>{2, 4, 6, 8}));
  memory->Free(reinterpret_cast<std::byte*>(a), 16);
  memory->Free(reinterpret_cast<std::byte*>(sum), 16);
}

}  // namespace
}  // namespace lockstep::worker
