// One whose parameters are to be everybody's, and those who take them.
#include "tests/unit/worker_core/machine_fixture.h"

namespace lockstep::worker {
namespace {

constexpr std::uint64_t kBytes = 4096 * sizeof(float);

class InitialBroadcastTest : public MachineTest {
 protected:
  InitialBroadcastTest() : MachineTest(4096, SmallChunks()) {}
  static MachineConfig SmallChunks() {
    MachineConfig config = Config();
    config.chunk_bytes = 1000;
    return config;
  }
  // Offsets and sizes of what is given in this step.
  std::vector<std::pair<std::uint64_t, std::uint64_t>> Given() const {
    std::vector<std::pair<std::uint64_t, std::uint64_t>> given;
    for (const auto& a : All<action::GiveChunk>()) given.emplace_back(a.offset, a.bytes);
    return given;
  }
  using Chunks = std::vector<std::pair<std::uint64_t, std::uint64_t>>;
  static msg::Start StartOf(const Plan& plan) { return {StateSource::kGiven, plan, 0}; }
  bool Initializes(bool parameters) const {
    const auto all = All<action::InitializeState>();
    return all.size() == 1 && all.front().parameters == parameters;
  }
};

TEST_F(InitialBroadcastTest, ItsOwnAreDrawnOnceAndGivenAsFarAsIsAllowed) {
  Do(event::PeerUp{kPeer, "test"});
  Tell(msg::GiveParameters{1, 2500});
  EXPECT_TRUE(Initializes(true));
  EXPECT_EQ(Given(), (Chunks{{0, 1000}, {1000, 1000}, {2000, 500}}));
  Tell(msg::GiveParameters{1, 2500});
  EXPECT_TRUE(actions_.empty());
  Tell(msg::GiveParameters{1, 3000});
  EXPECT_EQ(Given(), (Chunks{{2500, 500}}));
  Tell(StartOf(MakePlan(0, 1)));
  EXPECT_TRUE(All<action::InitializeState>().empty()) << "they are there";
}

TEST_F(InitialBroadcastTest, NoMoreIsUnderWayThanAWindow) {
  Do(event::PeerUp{kPeer, "test"});
  Tell(msg::GiveParameters{1, kBytes});
  EXPECT_EQ(Given(), (Chunks{{0, 1000}, {1000, 1000}, {2000, 1000}, {3000, 1000}}));
  Tell(msg::GiveParameters{2, kBytes});
  EXPECT_TRUE(Given().empty());
  Do(event::ChunkGiven{});
  EXPECT_EQ(Given(), (Chunks{{0, 1000}})) << "those of the giving before have to leave, too";
}

TEST_F(InitialBroadcastTest, WhoTakesThemBeginsWithThem) {
  Do(event::PeerUp{kPeer, "test"});
  Tell(msg::StateChunk{RoundId(0), 0, 0, true, std::vector<std::byte>(kBytes)});
  EXPECT_EQ(All<action::StoreState>().size(), 1u);
  ASSERT_TRUE(Told<msg::CheckpointTaken>());
  EXPECT_EQ(Told<msg::CheckpointTaken>()->bytes, kBytes);
  Tell(StartOf(MakePlan(0, 1)));
  EXPECT_TRUE(Initializes(false));
}

TEST_F(InitialBroadcastTest, AnothersBeginAnewAndTheOwnWriteOverThem) {
  Do(event::PeerUp{kPeer, "test"});
  Tell(msg::StateChunk{RoundId(0), 0, 0, false, std::vector<std::byte>(400)});
  Tell(msg::StateChunk{RoundId(0), 0, 0, false, std::vector<std::byte>(800)});
  ASSERT_TRUE(Told<msg::CheckpointTaken>());
  EXPECT_EQ(Told<msg::CheckpointTaken>()->bytes, 1200u) << "all that it has stored";
  Tell(msg::GiveParameters{2, 0});
  EXPECT_TRUE(Initializes(true));
  EXPECT_TRUE(Given().empty());
}

TEST_F(InitialBroadcastTest, InTheFirstRoundTheyAreGivenAgainUntilItIsCommitted) {
  Do(event::PeerUp{kPeer, "test"});
  Tell(msg::StateChunk{RoundId(0), 0, 0, true, std::vector<std::byte>(kBytes)});
  Tell(StartOf(MakePlan(0, 1)));
  Tell(msg::GiveParameters{2, 1000});
  EXPECT_EQ(Given(), (Chunks{{0, 1000}}));
  Do(event::ChunkGiven{});
  EXPECT_TRUE(All<action::InitializeState>().empty());
  Tell(msg::GiveParameters{3, 500});
  EXPECT_EQ(Given(), (Chunks{{0, 500}}));

  msg::Commit commit = MakeCommit(0, {{kPeer, PartIndex(0), 1, 4}});
  commit.owners = {1, {{kPeer, 1}}};
  commit.next->owners = {1, {{kPeer, 1}}};
  commit.next->assignments.clear();
  Tell(commit);
  PeerSays(SumsOf(0, 5));
  for (const auto& fetch : All<action::Fetch>()) {
    Do(event::FetchDone{fetch.fetch, FetchStatus::kOk});
  }
  ASSERT_EQ(All<action::Apply>().size(), 1u);
  const std::uint64_t op = All<action::Apply>()[0].op;
  Tell(msg::GiveParameters{3, 1000});
  EXPECT_TRUE(Given().empty()) << "they are being changed";
  Do(event::OpDone{op, false, 42, ""});
  Tell(msg::GiveParameters{4, 1000});
  EXPECT_TRUE(Given().empty()) << "they are others";
}

}  // namespace
}  // namespace lockstep::worker
