// Who holds which shard of the optimizer's state, as members come and go.
#include "coordinator/round/state_replicas.h"
#include "tests/unit/coordinator/member_states.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

namespace lockstep::coordinator {
namespace {

using ::testing::ElementsAre;

class StateReplicasTest : public ::testing::Test {
 protected:
  static constexpr std::uint32_t kWorkers = 4;

  StateReplicasTest() {
    for (std::uint64_t i = 0; i < kWorkers; ++i) {
      Join();
    }
  }

  void Join() {
    Member* member = members_.TakeSlot(std::nullopt, ConnectionId(++connections_), Time{});
    Bring(members_, *member, MemberState::kLive, Time{});
  }
  void Lose(std::uint32_t worker) {
    Member& member = members_.at(WorkerId(worker));
    const MemberId id = member.id;
    members_.Free(member, Time{});
    replicas_.OnOut(id);
  }
  MemberId Id(std::uint32_t worker) const { return members_.at(WorkerId(worker)).id; }
  OwnerMap Choose(bool may_move = true) {
    std::vector<MemberId> live;
    for (const Member& member : members_.all()) {
      if (member.live()) live.push_back(member.id);
    }
    return replicas_.Choose(++version_, live, members_, may_move);
  }
  // Of each shard the workers.
  static std::vector<std::vector<std::uint32_t>> Workers(const OwnerMap& map) {
    std::vector<std::vector<std::uint32_t>> workers;
    for (const ShardHolders& shard : map.holders) {
      workers.emplace_back();
      for (const MemberId& id : shard.members) workers.back().push_back(id.worker.value);
    }
    return workers;
  }

  Members members_{kWorkers};
  StateReplicas replicas_{kWorkers, 2};
  std::uint64_t connections_ = 0;
  std::uint32_t version_ = 0;
};

TEST_F(StateReplicasTest, EachShardHasAsManyAsAreAskedFor) {
  const OwnerMap map = Choose();
  EXPECT_THAT(Workers(map), ElementsAre(ElementsAre(0, 1), ElementsAre(1, 2), ElementsAre(2, 3),
                                        ElementsAre(3, 0)));
  EXPECT_FALSE(replicas_.Copies(map));
  EXPECT_EQ(Choose().holders, map.holders);  // nothing moves without a reason
}

// What the others hold stays with them: only the copies that are lost are made anew.
TEST_F(StateReplicasTest, ALossMovesWhatIsLostAndNothingElse) {
  const OwnerMap before = Choose();
  Lose(1);
  const OwnerMap after = Choose(false);
  EXPECT_TRUE(replicas_.Copies(after));
  EXPECT_FALSE(replicas_.Lost());
  for (std::uint32_t s = 0; s < kWorkers; ++s) {
    const auto& now = after.holders[s].members;
    EXPECT_EQ(now.size(), 2u);
    for (const MemberId& id : before.holders[s].members) {
      if (id.worker == WorkerId(1)) continue;
      EXPECT_THAT(now, ::testing::Contains(id)) << "shard " << s;
    }
    EXPECT_THAT(now, ::testing::Not(::testing::Contains(before.holders[1].members[0])));
  }
  replicas_.OnDecided(after);
  EXPECT_FALSE(replicas_.Copies(after));
}

TEST_F(StateReplicasTest, AShardIsLostWithItsLastHolder) {
  Choose();
  Lose(1);
  EXPECT_FALSE(replicas_.Lost());
  EXPECT_TRUE(replicas_.Needed(Id(2)));
  EXPECT_FALSE(replicas_.Needed(Id(3)));
  Lose(2);
  EXPECT_EQ(replicas_.Lost(), 1u);
}

// One at a time, each when the one before has been copied.
TEST_F(StateReplicasTest, ANewcomerIsGivenItsPartShardByShard) {
  Choose();
  Lose(1);
  replicas_.OnDecided(Choose());
  Join();
  const auto held = [&](const OwnerMap& map) {
    return std::ranges::count_if(map.holders, [&](const ShardHolders& shard) {
      return std::ranges::find(shard.members, Id(1)) != shard.members.end();
    });
  };
  const OwnerMap first = Choose();
  EXPECT_EQ(held(first), 1);
  EXPECT_EQ(held(Choose()), 1);  // it has not been copied yet
  replicas_.OnDecided(first);
  const OwnerMap second = Choose();
  EXPECT_EQ(held(second), 2);
  replicas_.OnDecided(second);
  EXPECT_EQ(held(Choose()), 2);
  for (const OwnerShare& share : Choose().owners) EXPECT_EQ(share.weight, 1u);
}

// A holder that was late is replaced; who else can, holds what it held.
TEST_F(StateReplicasTest, WhoIsOnTrialHoldsNothing) {
  Choose();
  members_.at(WorkerId(2)).owner_trial.Fail(RoundId(3));
  const OwnerMap map = Choose(false);
  for (const ShardHolders& shard : map.holders) {
    EXPECT_THAT(shard.members, ::testing::Not(::testing::Contains(Id(2))));
    EXPECT_EQ(shard.members.size(), 2u);
  }
}

// With fewer workers than copies each has all that there can be.
TEST_F(StateReplicasTest, TheLastWorkerHoldsEverything) {
  Choose();
  Lose(1);
  replicas_.OnDecided(Choose());
  Lose(3);
  replicas_.OnDecided(Choose());
  Lose(0);
  ASSERT_FALSE(replicas_.Lost());
  const OwnerMap map = Choose();
  for (const ShardHolders& shard : map.holders) EXPECT_THAT(shard.members, ElementsAre(Id(2)));
  EXPECT_FALSE(replicas_.Copies(map));
}

}  // namespace
}  // namespace lockstep::coordinator
