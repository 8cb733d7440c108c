// What becomes of the thread that calls: a context of CUDA's is current there or it is not.
#include <cuda.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdlib>
#include <future>
#include <memory>
#include <thread>
#include <vector>

#include "base/check.h"
#include "transport/staging/device_copies.h"
#include "worker/compute/compute.h"
#include "worker/compute/cuda/cuda_device.h"
#include "worker/compute/cuda/driver_call.h"
#include "worker/memory/exchange_memory.h"
#include "worker/runtime/transport_set.h"

namespace lockstep::worker {
namespace {

bool HasContext() {
  decltype(&cuCtxGetCurrent) get = nullptr;
  LOCKSTEP_CHECK(cuda::FindDriverCall("cuCtxGetCurrent", get));
  CUcontext current = nullptr;
  return get(&current) == CUDA_SUCCESS && current != nullptr;
}

std::shared_ptr<ExchangeMemory> Memory() {
  auto memory = MakeCudaExchangeMemory(0);
  LOCKSTEP_CHECK(memory.ok(), "{}", memory.error().message);
  return *std::move(memory);
}

class Nobody final : public TransportUser {
 public:
  void Handle(const Event& /*event*/) override {}
  transport::ServeAnswer Serve(const MemberId& /*peer*/, const PieceName& /*piece*/) override {
    return {};
  }
};

// UCX copies by the context of the thread that it is called on.
TEST(GpuThread, ATransportsHasTheDevice) {
  Nobody user;
  const auto memory = Memory();
  TransportSet::Setup setup;
  setup.options.self = {WorkerId(0), Incarnation(1)};
  setup.options.job_key.assign(32, std::byte{7});
  setup.piece_bytes = 4096;
  TransportSet transports(user, *memory, setup);
  transports.Open({"tcp", "tcp", {}});
  ASSERT_TRUE(transports.CheckAnyOpen().ok());
  transports.Start();
  std::promise<bool> first;
  std::promise<bool> then;
  transports.Run([&] {
    first.set_value(HasContext());
    auto some = memory->Allocate(4096);
    if (some) memory->Free(*some, 4096);
    then.set_value(HasContext());
  });
  EXPECT_TRUE(first.get_future().get());
  EXPECT_TRUE(then.get_future().get());
  transports.Stop();
}

// A program's thread computes where it did before.
TEST(GpuThread, IsLeftAsItWas) {
  std::thread([] {
    EXPECT_FALSE(HasContext());
    auto memory = Memory();
    EXPECT_FALSE(HasContext());
    auto some = memory->Allocate(4096);
    ASSERT_TRUE(some.ok());
    EXPECT_FALSE(HasContext());
    memory->Free(*some, 4096);
    memory.reset();
    EXPECT_FALSE(HasContext());
  }).join();
}

TEST(GpuThread, AMemoryOnAGpuThatIsNotThereIsAnError) {
  std::thread([] {
    EXPECT_THROW(static_cast<void>(MakeCudaExchangeMemory(99)), DeviceError);
    EXPECT_FALSE(HasContext());
  }).join();
}

// A device that has failed, in a process of its own: nothing heals it.
TEST(GpuThread, ADeviceThatHasFailedIsAnAnswer) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto fails = [] {
    const auto memory = Memory();
    bool thrown = false;
    try {
      memory->AllFinite(reinterpret_cast<const float*>(64), 16);  // nobody's
    } catch (const DeviceError&) {
      thrown = true;
    }
    transport::DeviceCopies& copies = *memory->copies();
    std::vector<std::byte> host(64);
    std::promise<bool> out;
    std::promise<bool> in;
    auto* device = reinterpret_cast<std::byte*>(64);
    copies.ToPinned(host.data(), device, host.size(), [&](bool ok) { out.set_value(ok); });
    copies.FromPinned(device, host.data(), host.size(), [&](bool ok) { in.set_value(ok); });
    const bool said = !out.get_future().get() && !in.get_future().get() &&
                      !copies.AllocatePinned(4096).ok() && !memory->Allocate(4096).ok();
    std::_Exit(thrown && said ? 0 : 1);
  };
  EXPECT_EXIT(fails(), testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace lockstep::worker
