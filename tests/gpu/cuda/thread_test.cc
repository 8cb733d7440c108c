// What becomes of the thread that calls: a context of CUDA's is current there or it is not.
#include <cuda.h>
#include <gtest/gtest.h>

#include <future>
#include <memory>
#include <thread>
#include <vector>

#include "base/check.h"
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

}  // namespace
}  // namespace lockstep::worker
