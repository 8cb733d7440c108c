#include "worker/core/heartbeat.h"

#include "tests/unit/worker_core/machine_fixture.h"

namespace lockstep::worker {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

class HeartbeatTest : public MachineTest {
 protected:
  static constexpr Duration kSilence = MachineConfig().peer_silence;

  // Lets time pass as the shell does, for as long; `meanwhile` every 100 ms.
  template <class F>
  void Pass(Duration time, F meanwhile) {
    const Time end = now_ + time;
    for (; now_ < end && closed_ == 0; now_ += milliseconds(99)) {
      meanwhile();
      Count();
      if (timer_ <= now_) {
        timer_ = kNever;
        Do(event::TimerDue{});
        Count();
      }
    }
  }
  void Count() {
    for (const auto& timer : All<action::SetTimer>()) timer_ = std::min(timer_, timer.at);
    alive_ += Said<Alive>() ? 1 : 0;
    closed_ += All<action::ClosePeer>().size();
    actions_.clear();
  }

  Time timer_;  // one may have been set before it was looked at
  int alive_ = 0;
  std::size_t closed_ = 0;
};

TEST_F(HeartbeatTest, ASilentPeerIsClosed) {
  Begin(0);
  PeerSays(MapState{false});
  Count();
  Pass(kSilence - seconds(1), [] {});
  EXPECT_EQ(closed_, 0u);
  Pass(kSilence, [] {});
  EXPECT_EQ(closed_, 1u);
}

TEST_F(HeartbeatTest, WhoSaysThatItIsAliveIsNot) {
  Begin(0);
  PeerSays(MapState{false});
  Count();
  int turn = 0;
  Pass(10 * kSilence, [&] {
    if (++turn % 70 == 0) PeerSays(Alive{});
  });
  EXPECT_EQ(closed_, 0u);
}

TEST_F(HeartbeatTest, ThePeerIsToldNowAndThen) {
  Begin(0);
  PeerSays(MapState{false});
  Count();
  Pass(10 * kSilence, [&] { PeerSays(Alive{}); });
  EXPECT_GE(alive_, 20);
  EXPECT_LE(alive_, 40);
}

// A piece of a big model may be longer on its way than a peer may be silent.
TEST_F(HeartbeatTest, BytesOfAPieceUnderWayCount) {
  Begin(0);
  PeerSays(MapState{false});
  Count();
  for (int i = 0; i < 10; ++i) {
    now_ += kSilence / 2;
    Do(event::TimerDue{{{kPeer, now_}}});
    EXPECT_TRUE(All<action::ClosePeer>().empty());
  }
}

TEST_F(HeartbeatTest, WhoAsksForPiecesIsThere) {
  Begin(0);
  PeerSays(MapState{false});
  Count();
  Pass(10 * kSilence, [&] { (void)machine_.OnPieceAsked(kPeer, PieceName{}); });
  EXPECT_EQ(closed_, 0u);
}

TEST_F(HeartbeatTest, AStopOfThisProcessIsNotTheirs) {
  Begin(0);
  PeerSays(MapState{false});
  Count();
  now_ += 3 * kSilence;
  Do(event::TimerDue{});
  EXPECT_TRUE(All<action::ClosePeer>().empty());
  Count();
  Pass(2 * kSilence, [] {});
  EXPECT_EQ(closed_, 1u);
}

// And no more than a formation's: a connection may swallow what it says from its first byte on.
TEST_F(HeartbeatTest, APeerThatMeasuresThePathStillHasTime) {
  Begin(0);
  Count();
  Pass(MachineConfig().formation_timeout + kSilence / 2, [] {});
  EXPECT_EQ(closed_, 0u);
  Pass(kSilence, [] {});
  EXPECT_EQ(closed_, 1u);
}

}  // namespace
}  // namespace lockstep::worker
