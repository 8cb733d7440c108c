// The transports of a worker whose exchange works in a device's memory.
#include "worker/runtime/transport_set.h"

#include <gtest/gtest.h>

#include <future>
#include <memory>

#include "tests/fake_device/fake_device.h"

namespace lockstep::worker {
namespace {

class Nobody final : public TransportUser {
 public:
  void Handle(const Event& /*event*/) override {}
  transport::ServeAnswer Serve(const MemberId& /*peer*/, const PieceName& /*piece*/) override {
    return {};
  }
};

// A library that takes a device's memory by itself looks at what is current on the thread.
TEST(TransportsOnADevice, TheirThreadsHaveEnteredIt) {
  Nobody user;
  const auto memory = MakeFakeMemory(std::make_shared<FakeAddresses>());
  TransportSet::Setup setup;
  setup.options.self = {WorkerId(0), Incarnation(1)};
  setup.options.job_key.assign(32, std::byte{7});
  setup.piece_bytes = 4096;
  TransportSet transports(user, *memory, setup);
  transports.Open({"tcp", "tcp", {}});
  ASSERT_TRUE(transports.CheckAnyOpen().ok());
  transports.Start();
  std::promise<bool> entered;
  transports.Run([&] { entered.set_value(EnteredThread()); });
  EXPECT_TRUE(entered.get_future().get());
  transports.Stop();
  EXPECT_FALSE(EnteredThread());
}

}  // namespace
}  // namespace lockstep::worker
