// How much of a peer is read to measure the way to it, over a link that is quick and one that is
// slow.
#include "worker/runtime/probe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>

#include "worker/memory/host_memory.h"

namespace lockstep::worker {
namespace {

using ::testing::HasSubstr;

// Takes fetches, which the test ends.
class FakeTransport final : public transport::Transport {
 public:
  FakeTransport() { capabilities_.max_piece_bytes = 4u << 20; }
  Status Start(transport::Handler*) override { return {}; }
  void Stop() override {}
  void Post(std::function<void()>) override {}
  void PostAt(Time, std::function<void()>) override {}
  const transport::Capabilities& capabilities() const override { return capabilities_; }
  std::string address() const override { return {}; }
  void Connect(const MemberId&, const std::string&) override {}
  void Close(transport::PeerId, std::string) override {}
  Result<transport::RegionId> Register(transport::MemoryKind, void*, std::size_t) override {
    return transport::RegionId(1);
  }
  void Unregister(transport::RegionId) override {}
  bool Send(transport::PeerId, std::span<const std::byte>) override { return true; }
  Result<transport::FetchId> Fetch(transport::PeerId, const PieceName&,
                                   const transport::Slice&) override {
    return transport::FetchId(++fetches);
  }
  void GiveUp(transport::FetchId) override {}
  void Provide(transport::PeerId, std::uint64_t, const transport::Slice&) override {}

  std::uint64_t fetches = 0;

 private:
  transport::Capabilities capabilities_;
};

struct ProbeTest : ::testing::Test {
  // As often as it asks. How many pieces it has had then.
  std::uint64_t Serve(Probe* probe) {
    std::uint64_t served = 0;
    while (served < transport.fetches) {
      EXPECT_FALSE(rate) << "it asks after the end";
      EXPECT_NE(probe->Unfinished(kPeer), "");
      EXPECT_TRUE(probe->OnFetchDone(transport::FetchId(++served), FetchStatus::kOk));
    }
    return served;
  }

  static constexpr transport::PeerId kPeer{7};
  FakeTransport transport;
  HostMemory memory;
  std::optional<double> rate;
};

TEST_F(ProbeTest, OverAQuickLinkAllPiecesAreRead) {
  Probe probe(transport, memory, Probe::kPieceBytes, std::chrono::hours(1));
  probe.Start(kPeer, [this](double gb_per_second) { rate = gb_per_second; });
  EXPECT_EQ(Serve(&probe), Probe::kPieces);
  ASSERT_TRUE(rate);
  EXPECT_GT(*rate, 0);
  EXPECT_EQ(probe.Unfinished(kPeer), "");
}

TEST_F(ProbeTest, OverASlowLinkWhatHasComeByThenIsEnough) {
  Probe probe(transport, memory, Probe::kPieceBytes, Duration{});
  probe.Start(kPeer, [this](double gb_per_second) { rate = gb_per_second; });
  EXPECT_EQ(Serve(&probe), 1u);
  ASSERT_TRUE(rate) << "all pieces were waited for";
  EXPECT_GT(*rate, 0);
}

TEST_F(ProbeTest, SaysHowMuchAPeerOwes) {
  Probe probe(transport, memory, Probe::kPieceBytes);
  EXPECT_EQ(probe.Unfinished(kPeer), "");
  probe.Start(kPeer, [this](double gb_per_second) { rate = gb_per_second; });
  EXPECT_THAT(probe.Unfinished(kPeer),
              HasSubstr("but 256 KiB that it should send have not arrived"));
  probe.OnPeerDown(kPeer);
  EXPECT_EQ(probe.Unfinished(kPeer), "");
}

}  // namespace
}  // namespace lockstep::worker
