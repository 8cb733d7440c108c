// Buffers whose pages go back when other slices of them will be written than before: those of the
// share that a worker had do not stay beside those of the share that it has.
#include "tests/unit/worker_core/machine_fixture.h"

namespace lockstep::worker {
namespace {

class GivenBackTest : public MachineTest {
 protected:
  GivenBackTest() = default;

  // `own` against the peer's 1: the share of this worker in the rounds from `round` on.
  static OwnerMap Owners(std::uint32_t own) { return {1, {{kSelf, own}, {kPeer, 1}}}; }
  void Start(std::uint32_t own) {
    Do(event::PeerUp{kPeer, "test"});
    Plan plan = MakePlan(0, 0);
    plan.owners = Owners(own);
    Tell(msg::Start{StateSource::kSeed, plan, 0});
  }
  static FloatRange Shard(const Layout& layout, std::uint32_t own, const MemberId& owner) {
    return layout.Shard(Owners(own), owner).at(0).range;
  }
  // A round of the peer's part, of which the first numbers ride along. Returns what was given back
  // on the way, each before it was written.
  std::vector<BufferId> Round(std::uint64_t round, std::uint32_t own, std::uint32_t next) {
    given_.clear();
    written_.clear();
    const auto tag = static_cast<std::uint32_t>(1 + round);
    const FloatRange shard = Shard(machine_.layout(), own, kSelf);
    PartReady ready{RoundId(round), PartIndex(0), tag, 0, 1, true, Attempt(0), {}};
    if (ride_along_ > 0) ready.inlined.ranges = {{shard.first, ride_along_}};
    PeerSays(ready, ride_along_);
    EXPECT_EQ(All<action::StoreInline>().size(), ride_along_ > 0 ? 1u : 0u);
    Note();
    EndFetch(BufferKind::kStaging, FloatRange::Between(shard.first + ride_along_, shard.end()));
    msg::Commit commit = MakeCommit(round, {{kPeer, PartIndex(0), 1, 4}});
    commit.owners = Owners(own);
    commit.next = MakePlan(round + 1, 0);
    commit.next->owners = Owners(next);
    Tell(commit);
    Note();
    const auto reductions = All<action::Reduce>();
    EXPECT_EQ(reductions.size(), 1u);
    Do(event::OpDone{reductions.at(0).op, false, 0, ""});
    Note();
    PeerSays(SumsOf(round));
    Note();
    EndFetch(BufferKind::kTaken, Shard(machine_.layout(), own, kPeer));
    const auto updates = All<action::Apply>();
    EXPECT_EQ(updates.size(), 1u);
    Do(event::OpDone{updates.at(0).op, false, 0, ""});
    Note();
    return given_;
  }
  void Note() {
    for (const Action& action : actions_) {
      if (const auto* fetch = std::get_if<action::Fetch>(&action))
        written_.push_back(fetch->to.buffer);
      if (const auto* reduce = std::get_if<action::Reduce>(&action))
        written_.push_back(reduce->out);
      const auto* given = std::get_if<action::GiveBack>(&action);
      if (given == nullptr) continue;
      EXPECT_EQ(std::ranges::count(written_, given->buffer), 0);
      given_.push_back(given->buffer);
      kept_.insert(kept_.end(), given->kept.begin(), given->kept.end());
    }
  }
  void EndFetch(BufferKind to, const FloatRange& range) {
    const auto fetches = All<action::Fetch>();
    ASSERT_EQ(fetches.size(), 1u);
    EXPECT_EQ(fetches[0].to.buffer.kind, to);
    EXPECT_EQ(fetches[0].to.range, range);
    Do(event::FetchDone{fetches[0].fetch, FetchStatus::kOk});
    Note();
  }

  std::vector<BufferId> given_;
  std::vector<BufferId> written_;
  std::vector<FloatRange> kept_;  // of all that was given back
  std::uint64_t ride_along_ = 0;
};

const BufferId kStaged{BufferKind::kStaging, 0, kPeer.worker};

TEST_F(GivenBackTest, NothingIsWhileSharesStay) {
  Start(1);
  for (std::uint64_t round = 0; round < 6; ++round) EXPECT_TRUE(Round(round, 1, 1).empty());
}

TEST_F(GivenBackTest, WhatWasWrittenOfAnotherShareIs) {
  Start(1);
  for (std::uint64_t round = 0; round < 4; ++round) EXPECT_TRUE(Round(round, 1, 1).empty());
  EXPECT_TRUE(Round(4, 1, 3).empty());
  std::vector<BufferId> given;
  for (std::uint64_t round = 5; round < 12; ++round) {
    for (const BufferId& buffer : Round(round, 3, 3)) given.push_back(buffer);
  }
  // Each once, whatever follows: where the peer's part goes, and the sums that are kept in turn.
  ASSERT_FALSE(given.empty());
  EXPECT_EQ(given[0], kStaged);
  for (const BufferId& buffer : given) {
    EXPECT_EQ(std::ranges::count(given, buffer), 1);
    EXPECT_TRUE(buffer == kStaged || buffer.kind == BufferKind::kSum);
  }
  EXPECT_GE(given.size(), 4u);
}

// They are in the buffer before its memory is looked at.
TEST_F(GivenBackTest, ItIsWhereSomeOfANewShareIsHereAlready) {
  ride_along_ = 16;
  Start(1);
  for (std::uint64_t round = 0; round < 4; ++round) EXPECT_TRUE(Round(round, 1, 1).empty());
  EXPECT_TRUE(Round(4, 1, 3).empty());
  std::size_t times = 0;
  for (std::uint64_t round = 5; round < 12; ++round) {
    times += static_cast<std::size_t>(std::ranges::count(Round(round, 3, 3), kStaged));
  }
  EXPECT_EQ(times, 1u);
  EXPECT_EQ(kept_, (std::vector<FloatRange>{{Shard(machine_.layout(), 3, kSelf).first, 16}}));
}

// A map of another version may share alike.
TEST_F(GivenBackTest, NothingIsWhereTheNewSharesAreTheOld) {
  Start(2);
  EXPECT_TRUE(Round(0, 2, 4).empty());
  const bool moved = Shard(machine_.layout(), 2, kSelf) != Shard(machine_.layout(), 4, kSelf);
  EXPECT_EQ(!Round(1, 4, 4).empty(), moved);
}

// One of three owners, whose share moves with the weights of those beside it.
class MiddleOwnerTest : public MachineTest {
 protected:
  MiddleOwnerTest() : MachineTest(4096, OfMiddle()) {}
  static MachineConfig OfMiddle() {
    MachineConfig config = Config();
    config.self = kOther;
    return config;
  }
  static OwnerMap Owners(std::uint32_t version, std::uint32_t before, std::uint32_t own,
                         std::uint32_t behind) {
    return {version, {{kPeer, before}, {kOther, own}, {kLast, behind}}};
  }
  // A part of the peer, and what it has of this worker's quarter of it, from 1024 on.
  void Start() {
    Do(event::PeerUp{kPeer, "test"});
    Plan plan = MakePlan(0, 0);
    plan.owners = Owners(1, 1, 1, 2);
    plan.members = {kPeer, kOther, kLast};
    Tell(msg::Start{StateSource::kSeed, plan, 0});
    Announce(1);
    EndFetch({1024, 1024});
  }
  void Announce(std::uint32_t tag) {
    PeerSays(PartReady{RoundId(0), PartIndex(0), tag, tag - 1, 1, true, Attempt(0), {}});
  }
  void EndFetch(const FloatRange& range) {
    const auto fetches = All<action::Fetch>();
    ASSERT_EQ(fetches.size(), 1u);
    EXPECT_EQ(fetches[0].to.range, range);
    Do(event::FetchDone{fetches[0].fetch, FetchStatus::kOk});
  }

  static constexpr MemberId kLast{WorkerId(3), Incarnation(1)};
};

// A map that comes while the part is here: what it had of the old share and what it needs of the
// new one are both of this part, and go when the next one comes.
TEST_F(MiddleOwnerTest, TwoSharesOfOnePartGoWithIt) {
  Start();
  Tell(msg::NewOwners{RoundId(0), Owners(2, 2, 1, 1)});
  EXPECT_TRUE(All<action::GiveBack>().empty());
  EndFetch({2048, 1024});
  // It is sealed once more: another part of the same worker in the same place.
  Announce(2);
  ASSERT_EQ(All<action::GiveBack>().size(), 1u);
  EXPECT_EQ(All<action::GiveBack>()[0].buffer, kStaged);
  EXPECT_TRUE(All<action::GiveBack>()[0].kept.empty());
}

TEST_F(MiddleOwnerTest, WhatALargerShareHasOfTheOldOneIsKept) {
  Start();
  Tell(msg::NewOwners{RoundId(0), Owners(2, 1, 2, 1)});
  ASSERT_EQ(All<action::GiveBack>().size(), 1u);
  EXPECT_EQ(All<action::GiveBack>()[0].kept, (std::vector<FloatRange>{{1024, 1024}}));
  EndFetch({2048, 1024});
  Announce(2);
  EXPECT_TRUE(All<action::GiveBack>().empty());
}

}  // namespace
}  // namespace lockstep::worker
