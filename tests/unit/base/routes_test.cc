// Every contributor is added once, whatever their number, and everybody gets the sums.
#include "base/routes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

namespace lockstep {
namespace {

MemberId Id(std::uint32_t worker) { return {WorkerId(worker), Incarnation(1)}; }

// Each of the first `members` workers takes part; those whose number `leaves_out` divides
// contribute nothing.
msg::Commit CommitOf(ExchangeAlgorithm algorithm, std::uint32_t members,
                     std::uint32_t leaves_out = 5000) {
  msg::Commit commit;
  for (std::uint32_t w = 0; w < members; ++w) {
    commit.members.push_back(Id(w));
    if (w % leaves_out == leaves_out - 1) continue;
    commit.parts.push_back({Id(w), PartIndex(0), 1, 1});
    if (w % 3 == 0) commit.parts.push_back({Id(w), PartIndex(1), 1, 1});
  }
  commit.owners = RootsOf(algorithm, 2, ContributorsOf(commit));
  return commit;
}

// Whose parts the partial sum of a member has, in the order in which they were added.
std::vector<MemberId> Added(const msg::Commit& commit, std::uint32_t shard, const MemberId& id,
                            std::uint32_t depth) {
  EXPECT_LE(depth, DepthOf(commit.owners.algorithm,
                           static_cast<std::uint32_t>(ContributorsOf(commit).size())));
  std::vector<MemberId> added;
  const Route route = RouteOf(commit, shard, id);
  EXPECT_TRUE(route.adds);
  EXPECT_TRUE(std::ranges::is_sorted(route.below));
  for (const MemberId& below : route.below) {
    EXPECT_EQ(RouteOf(commit, shard, below).above, id);
    const auto of = Added(commit, shard, below, depth + 1);
    added.insert(added.end(), of.begin(), of.end());
  }
  added.push_back(id);
  return added;
}

class Routes : public ::testing::TestWithParam<ExchangeAlgorithm> {};

TEST_P(Routes, AddEveryContributorOnceAndServeEverybody) {
  for (std::uint32_t members = 1; members <= 67; ++members) {
    for (const std::uint32_t leaves_out : {5000u, 4u, 2u}) {
      const msg::Commit commit = CommitOf(GetParam(), members, leaves_out);
      const std::vector<MemberId> contributors = ContributorsOf(commit);
      for (std::uint32_t shard = 0; shard < commit.owners.owners.size(); ++shard) {
        const MemberId& owner = commit.owners.owners[shard].owner;
        EXPECT_TRUE(RouteOf(commit, shard, owner).root());
        std::vector<MemberId> added = Added(commit, shard, owner, 1);
        if (GetParam() == ExchangeAlgorithm::kRing) {
          // The order of summation: direct's bits.
          EXPECT_EQ(added, contributors);
        }
        std::ranges::sort(added);
        EXPECT_EQ(added, contributors);
        std::multiset<MemberId> served;
        for (const MemberId& id : contributors) {
          for (const MemberId& leaf : RouteOf(commit, shard, id).leaves) {
            served.insert(leaf);
            const Route route = RouteOf(commit, shard, leaf);
            EXPECT_EQ(route.above, id);
            EXPECT_FALSE(route.adds || !route.below.empty() || !route.leaves.empty());
          }
        }
        EXPECT_EQ(served.size() + contributors.size(), members);
        EXPECT_EQ(std::set<MemberId>(served.begin(), served.end()).size(), served.size());
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Algorithms, Routes,
                         ::testing::Values(ExchangeAlgorithm::kRing, ExchangeAlgorithm::kTree));

// So that who sends and takes more for one half does less for the other.
TEST(Trees, AreMirrorImages) {
  const msg::Commit commit = CommitOf(ExchangeAlgorithm::kTree, 1000);
  ASSERT_EQ(commit.owners.owners.size(), 2u);
  std::uint32_t inside_of_both = 0;
  for (const MemberId& id : commit.members) {
    const Route first = RouteOf(commit, 0, id);
    const Route second = RouteOf(commit, 1, Id(999 - id.worker.value));
    EXPECT_EQ(first.below.size(), second.below.size());
    EXPECT_LE(first.below.size(), 2u);
    inside_of_both += !first.below.empty() && !RouteOf(commit, 1, id).below.empty() ? 1 : 0;
  }
  EXPECT_LE(inside_of_both, 300u);
}

TEST(Trees, AreAsDeepAsTheyHaveToBe) {
  EXPECT_EQ(DepthOf(ExchangeAlgorithm::kTree, 1), 1u);
  EXPECT_EQ(DepthOf(ExchangeAlgorithm::kTree, 3), 2u);
  EXPECT_EQ(DepthOf(ExchangeAlgorithm::kTree, 4096), 13u);
  EXPECT_EQ(DepthOf(ExchangeAlgorithm::kRing, 4096), 4096u);
}

}  // namespace
}  // namespace lockstep
