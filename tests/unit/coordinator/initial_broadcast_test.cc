// How one worker's parameters come to all: passed on as they come, at the pace of the slowest.
#include "coordinator/membership/initial_broadcast.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "policies/registry.h"
#include "tests/unit/coordinator/member_states.h"
#include "tests/unit/coordinator/owned_in_tests.h"

namespace lockstep::coordinator {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;

constexpr std::uint64_t kWindow = 4u << 20;

class InitialBroadcastTest : public ::testing::Test {
 protected:
  InitialBroadcastTest() : job_(Start(), *policies::MakePolicy(PolicySection(), 4), 1), it_(&job_) {
    Edit(job_.out) = &actions_;
    Edit(job_.now) = Time(std::chrono::seconds(1));
    Edit(job_.agreed).parameter_count = kTotal / sizeof(float);
    for (std::uint32_t w = 0; w < 3; ++w) Join(w, MemberState::kForming);
  }
  static StartParameters Start() {
    StartParameters start;
    start.workers = 4;
    start.config.liveness.timeout_s = 10;
    start.given_under_way = kWindow;
    return start;
  }
  void Join(std::uint32_t worker, MemberState state) {
    Member* member =
        job_.members.TakeSlot(WorkerId(worker), ConnectionId(++connections_), job_.now());
    ASSERT_NE(member, nullptr);
    Bring(job_.members, *member, state, job_.now());
    of_[ConnectionId(connections_)] = worker;
  }
  void Leave(std::uint32_t worker) {
    const MemberId id = At(worker).id;
    job_.members.Free(At(worker), job_.now());
    it_.OnOut(id);
  }
  Member& At(std::uint32_t worker) { return job_.members.at(WorkerId(worker)); }

  // Who was asked since the last call, how far.
  std::vector<std::pair<std::uint32_t, std::uint64_t>> Asked() {
    std::vector<std::pair<std::uint32_t, std::uint64_t>> asked;
    for (const auto& [to, message] : Messages()) {
      const auto* give = std::get_if<msg::GiveParameters>(&message);
      if (give == nullptr) continue;
      broadcast_ = give->giving;
      asked.emplace_back(to, give->upto);
    }
    return asked;
  }
  // And what was passed on: by worker, its first byte and how many.
  std::map<std::uint32_t, std::pair<std::uint64_t, std::uint64_t>> Passed() const {
    std::map<std::uint32_t, std::pair<std::uint64_t, std::uint64_t>> passed;
    for (const auto& [to, message] : Messages()) {
      const auto* chunk = std::get_if<msg::StateChunk>(&message);
      if (chunk != nullptr) passed[to] = {chunk->offset, chunk->bytes.size()};
    }
    return passed;
  }
  std::vector<std::pair<std::uint32_t, msg::ToWorker>> Messages() const {
    std::vector<std::pair<std::uint32_t, msg::ToWorker>> messages;
    for (const Action& action : actions_) {
      const auto* send = std::get_if<Send>(&action);
      if (send == nullptr) continue;
      for (const ConnectionId to : send->to) messages.emplace_back(of_.at(to), *send->message);
    }
    return messages;
  }
  Status Gives(std::uint32_t worker, std::uint64_t offset, std::uint64_t bytes) {
    actions_.clear();
    return it_.OnGiven(At(worker), msg::Given{broadcast_, offset, std::vector<std::byte>(bytes)});
  }
  Status Takes(std::uint32_t worker, std::uint64_t bytes) {
    actions_.clear();
    return it_.OnCheckpointTaken(At(worker), msg::CheckpointTaken{bytes});
  }
  std::vector<std::string> Evicted() const {
    std::vector<std::string> reasons;
    for (const Leaving& leaving : job_.leaving()) reasons.push_back(leaving.reason);
    return reasons;
  }

  static constexpr std::uint64_t kTotal = 2 * kWindow + 400;
  Actions actions_;
  std::uint64_t connections_ = 0;
  std::uint32_t broadcast_ = 0;
  std::map<ConnectionId, std::uint32_t> of_;
  Job job_;
  InitialBroadcast it_;
};

TEST_F(InitialBroadcastTest, TheLowestGivesAtThePaceOfTheSlowest) {
  it_.Begin();
  EXPECT_THAT(Asked(), ElementsAre(Pair(0, 0u), Pair(0, kWindow)));
  ASSERT_TRUE(Gives(0, 0, 1000).ok());
  EXPECT_THAT(Passed(), ElementsAre(Pair(1, Pair(0u, 1000u)), Pair(2, Pair(0u, 1000u))));
  EXPECT_THAT(Asked(), IsEmpty());
  ASSERT_TRUE(Takes(1, 1000).ok());
  EXPECT_THAT(Asked(), IsEmpty()) << "the other one lacks them still";
  ASSERT_TRUE(Takes(2, 400).ok());
  EXPECT_THAT(Asked(), ElementsAre(Pair(0, kWindow + 400)));
  // Whatever comes, no receiver ever has more on its way than the window.
  std::uint64_t come = 1000;
  std::uint64_t taken = 400;
  std::uint64_t allowed = kWindow + 400;
  while (it_.busy()) {
    const std::uint64_t more = std::min<std::uint64_t>(1 << 20, allowed - come);
    if (more > 0) {
      ASSERT_TRUE(Gives(0, come, more).ok());
      come += more;
      for (const auto& [worker, upto] : Asked()) allowed = upto;
    }
    EXPECT_LE(allowed - taken, kWindow);
    ASSERT_TRUE(Takes(1, come).ok());
    for (const auto& [worker, upto] : Asked()) allowed = upto;
    taken = std::min(come, taken + 300'000);
    ASSERT_TRUE(Takes(2, taken).ok());
    for (const auto& [worker, upto] : Asked()) allowed = upto;
  }
  EXPECT_EQ(come, kTotal);
  for (std::uint32_t w = 0; w < 3; ++w) EXPECT_TRUE(it_.HasAll(At(w).id)) << w;
}

TEST_F(InitialBroadcastTest, WhenTheGiverGoesTheNextOneGivesFromTheFirstByte) {
  it_.Begin();
  Asked();
  ASSERT_TRUE(Gives(0, 0, 1000).ok());
  actions_.clear();
  Leave(0);
  EXPECT_THAT(Asked(), ElementsAre(Pair(1, 0u), Pair(1, kWindow - 1000)))
      << "2 has 1000 bytes on their way";
  // What it took of the one that is gone it may still tell.
  ASSERT_TRUE(Takes(1, 1000).ok());
  ASSERT_TRUE(Gives(1, 0, 2000).ok());
  EXPECT_THAT(Passed(), ElementsAre(Pair(2, Pair(0u, 2000u))));
  // The receiver counts all that it has stored.
  EXPECT_FALSE(Takes(2, 3001).ok());
  EXPECT_TRUE(Takes(2, 3000).ok());
}

TEST_F(InitialBroadcastTest, WhoIsAloneIsToldThatTheJobsAreItsOwn) {
  it_.Begin();
  actions_.clear();
  Leave(2);
  EXPECT_TRUE(it_.busy());
  actions_.clear();
  Leave(0);
  EXPECT_THAT(Asked(), ElementsAre(Pair(1, 0u)));
  EXPECT_FALSE(it_.busy());
}

TEST_F(InitialBroadcastTest, WhoGivesKnowsItAlsoWhereNobodyCanTakeAnything) {
  it_.Begin();
  Asked();
  ASSERT_TRUE(Gives(0, 0, kWindow).ok());
  actions_.clear();
  Leave(0);
  EXPECT_THAT(Asked(), ElementsAre(Pair(1, 0u))) << "all that may be is on its way to 2";
  Leave(2);
  EXPECT_FALSE(it_.busy());
}

TEST_F(InitialBroadcastTest, WhoComesInTheFirstRoundIsGivenThemByOneThatIsLive) {
  Leave(2);
  it_.Begin();
  Asked();
  for (std::uint64_t at = 0, taken = 0; it_.busy();) {
    const std::uint64_t more = std::min<std::uint64_t>(kTotal - at, 1 << 20);
    ASSERT_TRUE(Gives(0, at, more).ok());
    at += more;
    ASSERT_TRUE(Takes(1, taken = at).ok());
  }
  for (std::uint32_t w = 0; w < 2; ++w) Bring(job_.members, At(w), MemberState::kLive, job_.now());
  Join(3, MemberState::kForming);
  actions_.clear();
  it_.Want(At(3));
  it_.Want(At(3));
  EXPECT_THAT(Asked(), ElementsAre(Pair(0, kWindow)));
  EXPECT_EQ(broadcast_, 2u);
  ASSERT_TRUE(Gives(0, 0, 4000).ok());
  EXPECT_THAT(Passed(), ElementsAre(Pair(3, Pair(0u, 4000u))));
  EXPECT_FALSE(it_.HasAll(At(3).id));
  // The round is committed: the rest would be of another state.
  it_.End();
  EXPECT_FALSE(it_.busy());
  ASSERT_TRUE(Gives(0, 4000, 4000).ok());
  EXPECT_THAT(Passed(), IsEmpty());
  EXPECT_FALSE(it_.HasAll(At(3).id));
  // The round is open once more. What it has taken before counts, by its own count.
  it_.Want(At(3));
  Asked();
  ASSERT_TRUE(Gives(0, 0, 400).ok());
  EXPECT_THAT(Passed(), ElementsAre(Pair(3, Pair(0u, 400u)))) << "the others have begun";
  EXPECT_TRUE(Takes(3, 4400).ok());
  EXPECT_FALSE(Takes(3, 4404).ok());
}

TEST_F(InitialBroadcastTest, OnlyWhoIsLiveGivesOnceTheRoundsHaveBegun) {
  it_.Begin();
  Asked();
  for (std::uint64_t at = 0; it_.busy();) {
    const std::uint64_t more = std::min<std::uint64_t>(kTotal - at, 1 << 20);
    ASSERT_TRUE(Gives(0, at, more).ok());
    at += more;
    for (std::uint32_t w : {1u, 2u}) ASSERT_TRUE(Takes(w, at).ok());
  }
  Bring(job_.members, At(0), MemberState::kLive, job_.now());
  for (std::uint32_t w : {1u, 2u}) Bring(job_.members, At(w), MemberState::kBehind, job_.now());
  Join(3, MemberState::kForming);
  actions_.clear();
  it_.Want(At(3));
  EXPECT_THAT(Asked(), ElementsAre(Pair(0, kWindow)));
  actions_.clear();
  Leave(0);
  it_.Want(At(3));
  EXPECT_THAT(Asked(), IsEmpty()) << "its own are not the job's";
  EXPECT_FALSE(it_.HasAll(At(3).id));
  Bring(job_.members, At(2), MemberState::kLive, job_.now());
  it_.Want(At(3));
  EXPECT_THAT(Asked(), ElementsAre(Pair(2, kWindow)));
}

TEST_F(InitialBroadcastTest, WhatIsOutOfOrderCostsItsSenderItsPlace) {
  EXPECT_FALSE(Gives(0, 0, 4).ok()) << "before anybody was asked";
  it_.Begin();
  Asked();
  EXPECT_FALSE(Gives(0, 4, 4).ok());
  EXPECT_FALSE(Gives(0, 0, 0).ok());
  EXPECT_FALSE(Gives(0, 0, 6).ok());
  EXPECT_FALSE(Gives(0, 0, kWindow + 4).ok());
  EXPECT_TRUE(Gives(1, 0, 4).ok());
  EXPECT_THAT(Passed(), IsEmpty()) << "of another one they are of no use";
  EXPECT_TRUE(Gives(0, 0, 8).ok());
  EXPECT_FALSE(Takes(1, 9).ok());
  EXPECT_FALSE(Takes(1, 7).ok()) << "a part of a number";
  EXPECT_TRUE(Takes(1, 8).ok());
  EXPECT_FALSE(Takes(1, 4).ok());
}

TEST_F(InitialBroadcastTest, WhoGivesOrTakesNothingIsOut) {
  it_.Begin();
  Asked();
  Edit(job_.now) += std::chrono::seconds(9);
  it_.Tick();
  EXPECT_THAT(Evicted(), IsEmpty());
  ASSERT_TRUE(Gives(0, 0, 8).ok());
  ASSERT_TRUE(Takes(1, 8).ok());
  EXPECT_EQ(it_.Waiting(),
            "waiting for worker 2: 0 of 8 MiB of worker 0's parameters are with all");
  Edit(job_.now) += std::chrono::seconds(9);
  ASSERT_TRUE(Takes(2, 0).ok()) << "that is nothing";
  Edit(job_.now) += std::chrono::seconds(1);
  it_.Tick();
  EXPECT_THAT(Evicted(),
              ElementsAre(HasSubstr("stored nothing of the initial parameters for 10.0 s"),
                          HasSubstr("sent nothing of its parameters for 10.0 s")));
  EXPECT_EQ(job_.leaving()[0].member, At(2).id);
  EXPECT_EQ(job_.leaving()[1].member, At(0).id);
}

}  // namespace
}  // namespace lockstep::coordinator
