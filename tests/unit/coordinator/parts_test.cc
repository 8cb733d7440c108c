// The smaller parts of the coordinator, one by one.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "coordinator/job/members.h"
#include "coordinator/round/delivery.h"
#include "coordinator/round/digest_votes.h"
#include "coordinator/round/owner_weights.h"
#include "tests/unit/coordinator/member_states.h"

namespace lockstep::coordinator {
namespace {

using std::chrono::milliseconds;
using ::testing::ElementsAre;

MemberId Id(std::uint32_t worker, std::uint32_t incarnation = 1) {
  return {WorkerId(worker), Incarnation(incarnation)};
}

Members Three() {
  Members members(3);
  for (std::uint64_t i = 0; i < 3; ++i) members.TakeSlot(std::nullopt, ConnectionId(i + 1), Time{});
  return members;
}

Members ThreeLive() {
  Members members = Three();
  for (Member& member : members.all()) Bring(members, member, MemberState::kLive, Time{});
  return members;
}

OwnerMap MapOf(const std::vector<std::uint32_t>& owners, std::uint32_t version = 0) {
  OwnerMap map{version, {}};
  for (const std::uint32_t owner : owners) map.owners.push_back({Id(owner), 1});
  return map;
}

TEST(Members, SlotsKeepTheirNumbersAndIncarnationsGrow) {
  Members members = Three();
  EXPECT_EQ(members.TakeSlot(WorkerId(1), ConnectionId(9), Time{}), nullptr);
  members.Free(members.at(WorkerId(1)), Time{});
  Member* again = members.TakeSlot(WorkerId(0), ConnectionId(9), Time{});
  ASSERT_NE(again, nullptr);
  EXPECT_EQ(again->id, Id(1, 2));
  EXPECT_EQ(members.Find(Id(1, 1)), nullptr);
  EXPECT_EQ(members.Find(ConnectionId(9)), again);
  EXPECT_EQ(members.Find(ConnectionId(2)), nullptr);
}

TEST(Members, SlowIsWhoTakesMuchLongerThanTheMedian) {
  Members members = ThreeLive();
  EXPECT_THAT(members.Slow(), ElementsAre()) << "nothing is known";
  members.at(WorkerId(2)).unit_times.Add(milliseconds(30));
  EXPECT_THAT(members.Slow(), ElementsAre()) << "of one there is nothing to tell";
  members.at(WorkerId(0)).unit_times.Add(milliseconds(20));
  EXPECT_THAT(members.Slow(), ElementsAre(WorkerId(2)));
  members.at(WorkerId(1)).unit_times.Add(milliseconds(21));
  EXPECT_THAT(members.Slow(), ElementsAre());
  members.at(WorkerId(0)).unit_times.Add(milliseconds(40));
  members.at(WorkerId(0)).unit_times.Add(milliseconds(40));
  EXPECT_THAT(members.Slow(), ElementsAre()) << "40, 21 and 30";
  Bring(members, members.at(WorkerId(2)), MemberState::kBehind, Time{});
  EXPECT_THAT(members.Slow(), ElementsAre(WorkerId(0)));
}

TEST(Members, ANewcomerTakesAFreshSlotBeforeALostOnes) {
  Members members(3);
  members.TakeSlot(std::nullopt, ConnectionId(1), Time{});
  members.Free(members.at(WorkerId(0)), Time{});
  EXPECT_EQ(members.TakeSlot(std::nullopt, ConnectionId(2), Time{})->id, Id(1));
  EXPECT_EQ(members.TakeSlot(WorkerId(0), ConnectionId(3), Time{})->id, Id(0, 2));
}

TEST(Members, MeasuredPathsAreThoseThatWereMeasured) {
  Members members = Three();
  members.SetPath(WorkerId(1), {Id(2), true, "", false, "tcp", 2.5});
  members.SetPath(WorkerId(1), {Id(0), true, "", true, "mapped", 9});
  members.SetPath(WorkerId(0), {Id(1), true, "", true, "mapped", 0});         // not measured
  members.SetPath(WorkerId(2), {Id(0), false, "no route", false, "tcp", 3});  // not reached
  const auto paths = members.MeasuredPaths();
  ASSERT_EQ(paths.size(), 2u);
  EXPECT_EQ(paths[0].from, WorkerId(1));
  EXPECT_EQ(paths[0].to, WorkerId(0));
  EXPECT_EQ(paths[0].path, "mapped");
  EXPECT_EQ(paths[1].to, WorkerId(2));
  EXPECT_EQ(paths[1].gb_per_second, 2.5);
  // A worker that leaves takes its paths with it.
  members.Free(members.at(WorkerId(2)), Time{});
  EXPECT_EQ(members.MeasuredPaths().size(), 1u);
}

// Of 33 workers there would be 1056.
TEST(Members, OfManyOnlyTheSlowestPathOfEachIsTold) {
  for (const std::uint32_t workers : {Members::kAllPathsUpTo, Members::kAllPathsUpTo + 1}) {
    Members members(workers);
    for (std::uint32_t w = 0; w < workers; ++w)
      members.TakeSlot(std::nullopt, ConnectionId(w + 1), Time{});
    for (std::uint32_t from = 0; from < workers; ++from) {
      for (std::uint32_t to = 0; to < workers; ++to) {
        // The slowest is to the next one; to the one after it as slow, to others faster.
        const std::uint32_t distance = (to + workers - from) % workers;
        const double rate = distance <= 2 ? 1 : 10 + distance;
        if (to != from) members.SetPath(WorkerId(from), {Id(to), true, "", false, "tcp", rate});
      }
    }
    const auto paths = members.MeasuredPaths();
    if (workers <= Members::kAllPathsUpTo) {
      EXPECT_EQ(paths.size(), std::size_t{workers} * (workers - 1));
      continue;
    }
    ASSERT_EQ(paths.size(), workers);
    for (std::uint32_t w = 0; w < workers; ++w) {
      EXPECT_EQ(paths[w].from, WorkerId(w));
      EXPECT_EQ(paths[w].to, WorkerId(std::min((w + 1) % workers, (w + 2) % workers)));
      EXPECT_EQ(paths[w].gb_per_second, 1);
    }
  }
}

TEST(Members, AMappingTakesBothAndEndsWithTheIncarnation) {
  Members members = Three();
  members.SetPath(WorkerId(0), {Id(1), true, "", true, "mapped", 1});
  EXPECT_FALSE(members.Mapped(WorkerId(0), WorkerId(1)));
  members.SetPath(WorkerId(1), {Id(0), true, "", true, "mapped", 1});
  EXPECT_TRUE(members.Mapped(WorkerId(0), WorkerId(1)));
  members.Free(members.at(WorkerId(1)), Time{});
  members.TakeSlot(WorkerId(1), ConnectionId(9), Time{});
  EXPECT_FALSE(members.Mapped(WorkerId(0), WorkerId(1)));
}

TEST(ClockOffset, TheShortestWayWins) {
  ClockOffset clock;
  clock.Add(Time(milliseconds(100)), Time(milliseconds(120)), 1'000'110'000'000);
  clock.Add(Time(milliseconds(200)), Time(milliseconds(202)), 1'000'201'000'000);
  clock.Add(Time(milliseconds(300)), Time(milliseconds(340)), 1'000'339'000'000);
  EXPECT_EQ(clock.ToOurs(1'000'500'000'000), Time(milliseconds(500)));
}

// The connection's own estimate comes as an answer to a ping that took as long: what is converted
// with it is what that estimate would have made of it.
TEST(ClockOffset, TakesOverAnEstimateWithItsWay) {
  const auto told = [](ClockOffset* clock, Duration now, Duration rtt, Duration offset) {
    clock->Add(Time(now - rtt), Time(now), (now - rtt / 2 + offset).count());
  };
  const std::int64_t worker_ns = 1'000'500'000'000;
  ClockOffset clock;
  clock.Guess(Time(milliseconds(90)), 1'000'070'000'000);
  EXPECT_EQ(clock.ToOurs(1'000'070'000'000), Time(milliseconds(90)));
  told(&clock, milliseconds(100), milliseconds(42), milliseconds(999'980));
  EXPECT_EQ(clock.ToOurs(worker_ns), Time(Duration(worker_ns) - milliseconds(999'980)));
  told(&clock, milliseconds(200), milliseconds(2), milliseconds(1'000'000));
  EXPECT_EQ(clock.ToOurs(worker_ns), Time(Duration(worker_ns) - milliseconds(1'000'000)));
  told(&clock, milliseconds(300), milliseconds(2), milliseconds(1'000'001));  // a drift
  EXPECT_EQ(clock.ToOurs(worker_ns), Time(Duration(worker_ns) - milliseconds(1'000'001)));
}

TEST(Delivery, AReceiptIsNeededOfEachOwnerThatIsNeitherSelfNorMapped) {
  Members members = Three();
  members.SetPath(WorkerId(0), {Id(1), true, "", true, "mapped", 1});
  members.SetPath(WorkerId(1), {Id(0), true, "", true, "mapped", 1});
  Delivery delivery(3);
  delivery.SetOwners(MapOf({0, 1, 2}), members);
  EXPECT_THAT(delivery.Missing(WorkerId(0), PartIndex(0)), ElementsAre(WorkerId(2)));
  EXPECT_TRUE(delivery.AddReceipt(WorkerId(2), WorkerId(0), PartIndex(0)));
  EXPECT_FALSE(delivery.AddReceipt(WorkerId(2), WorkerId(0), PartIndex(0)));
  EXPECT_TRUE(delivery.Delivered(WorkerId(0), PartIndex(0)));
  EXPECT_FALSE(delivery.Delivered(WorkerId(0), PartIndex(1)));
  EXPECT_FALSE(delivery.AddReceipt(WorkerId(0), WorkerId(2), PartIndex(0)));
  EXPECT_TRUE(delivery.AddReceipt(WorkerId(1), WorkerId(2), PartIndex(0)));
}

// They send no more receipts; what the others lack is counted on.
TEST(Delivery, OfTwoThatHaveMappedEachOtherInTheMidstOfARoundNoReceiptIsNeeded) {
  const Members members = Three();
  Delivery delivery(3);
  delivery.SetOwners(MapOf({0, 1}), members);
  EXPECT_TRUE(delivery.AddReceipt(WorkerId(1), WorkerId(0), PartIndex(1)));
  EXPECT_TRUE(delivery.NoteMapped(WorkerId(1), WorkerId(0)));
  EXPECT_TRUE(delivery.Delivered(WorkerId(0), PartIndex(0)));
  EXPECT_TRUE(delivery.Delivered(WorkerId(0), PartIndex(1)));
  EXPECT_FALSE(delivery.NoteMapped(WorkerId(1), WorkerId(0))) << "it is known";
  EXPECT_TRUE(delivery.NoteMapped(WorkerId(1), WorkerId(2)));
  EXPECT_THAT(delivery.Missing(WorkerId(2), PartIndex(0)), ElementsAre(WorkerId(0)));
  EXPECT_TRUE(delivery.AddReceipt(WorkerId(0), WorkerId(2), PartIndex(0)));
}

TEST(Delivery, ReceiptsEndWithTheMapAndWithTheContributor) {
  const Members members = Three();
  Delivery delivery(3);
  delivery.SetOwners(MapOf({0}), members);
  EXPECT_TRUE(delivery.AddReceipt(WorkerId(0), WorkerId(1), PartIndex(0)));
  delivery.AddContributor(WorkerId(1), members);
  EXPECT_FALSE(delivery.Delivered(WorkerId(1), PartIndex(0)));
  EXPECT_TRUE(delivery.AddReceipt(WorkerId(0), WorkerId(1), PartIndex(0)));
  delivery.SetOwners(MapOf({2}, 1), members);
  EXPECT_FALSE(delivery.Delivered(WorkerId(1), PartIndex(0)));
  EXPECT_TRUE(delivery.Delivered(WorkerId(2), PartIndex(0)));
}

TEST(DigestVotes, AMinorityIsNamed) {
  DigestVotes votes;
  EXPECT_TRUE(votes.Add(Id(0), RoundId(1), 0, 5, 3).minority.empty());
  EXPECT_TRUE(votes.Add(Id(1), RoundId(1), 0, 6, 3).minority.empty());
  const auto outcome = votes.Add(Id(2), RoundId(1), 0, 6, 3);
  EXPECT_THAT(outcome.minority, ElementsAre(Id(0)));
  EXPECT_FALSE(outcome.no_majority);
  EXPECT_EQ(votes.Leading(RoundId(1))->value, 6u);
  EXPECT_EQ(votes.Leading(RoundId(1))->agreeing, 2u);
}

TEST(DigestVotes, WithoutAStrictMajorityNobodyIsBelieved) {
  DigestVotes votes;
  EXPECT_FALSE(votes.Add(Id(0), RoundId(1), 0, 5, 2).no_majority);
  EXPECT_TRUE(votes.Add(Id(1), RoundId(1), 0, 6, 2).no_majority);
}

TEST(DigestVotes, ANewAttemptVotesAnew) {
  DigestVotes votes;
  EXPECT_TRUE(votes.Add(Id(0), RoundId(1), 0, 5, 2).minority.empty());
  votes.Forget(RoundId(1));
  EXPECT_FALSE(votes.Leading(RoundId(1)));
  EXPECT_FALSE(votes.Add(Id(1), RoundId(1), 0, 6, 2).no_majority);
}

// Of owners; all with the same delay of control messages but the last.
std::vector<LinkResponse> Late(const std::vector<milliseconds>& receipts, milliseconds control) {
  std::vector<LinkResponse> responses;
  for (std::uint32_t i = 0; i < receipts.size(); ++i) {
    responses.push_back({.member = Id(i),
                         .receipts = receipts[i],
                         .delivery = milliseconds(200),
                         .delivered = true,
                         .control = milliseconds(1)});
  }
  responses.back().control = control;
  return responses;
}

TEST(OwnerWeights, StayUnderStaticConditionsAndHalveForALastingReason) {
  const Members members = Three();
  OwnerWeights weights(3);
  const std::vector<MemberId> ids = {Id(0), Id(1), Id(2)};
  const OwnerMap equal = weights.Choose(0, ids, members);
  const std::vector<Duration> jitter[] = {{milliseconds(20), milliseconds(25), milliseconds(22)},
                                          {milliseconds(28), milliseconds(20), milliseconds(35)}};
  for (int i = 0; i < 200; ++i) {
    weights.OnRoundPublished(ids, jitter[i % 2]);
    ASSERT_EQ(weights.Choose(0, ids, members), equal);
  }
  const std::vector<Duration> slow = {milliseconds(20), milliseconds(20), milliseconds(100)};
  for (int i = 0; i < 40; ++i) weights.OnRoundPublished(ids, slow);
  const OwnerMap half = weights.Choose(0, ids, members);
  EXPECT_EQ(half.owners[0].weight, 2u);
  EXPECT_EQ(half.owners[2].weight, 1u);
}

TEST(OwnerWeights, WhoseReceiptsAndWordsAreLateOwnsNothing) {
  const Members members = Three();
  OwnerWeights weights(3);
  const std::vector<MemberId> ids = {Id(0), Id(1), Id(2)};
  const std::vector<milliseconds> late = {milliseconds(1), milliseconds(2), milliseconds(90)};
  const std::vector<milliseconds> even = {milliseconds(8), milliseconds(15), milliseconds(50)};
  // Neither alone, nor both at times.
  for (int i = 0; i < 60; ++i) {
    EXPECT_TRUE(weights.OnRoundDelivered(Late(late, milliseconds(8))).empty());
    EXPECT_TRUE(weights.OnRoundDelivered(Late(even, milliseconds(16))).empty());
    EXPECT_TRUE(weights.OnRoundDelivered(Late(late, milliseconds(16))).empty());
  }
  for (int i = 0; i < 3; ++i) weights.OnRoundDelivered(Late(even, milliseconds(16)));
  EXPECT_EQ(weights.Choose(0, ids, members), MapOf({0, 1, 2}));
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(weights.OnRoundDelivered(Late(late, milliseconds(16))).empty());
  }
  const auto changes = weights.OnRoundDelivered(Late(late, milliseconds(16)));
  ASSERT_EQ(changes.size(), 1u);
  EXPECT_EQ(changes[0].worker, WorkerId(2));
  EXPECT_FALSE(changes[0].owns);
  EXPECT_EQ(weights.Choose(0, ids, members), MapOf({0, 1}));
  // Better than nobody; and the next one in its slot is another one.
  EXPECT_EQ(weights.Choose(0, std::vector{Id(2)}, members), MapOf({2}));
  const OwnerMap with_a_newcomer{0, {{Id(1), 1}, {Id(2, 7), 1}}};
  EXPECT_EQ(weights.Choose(0, std::vector{Id(1), Id(2, 7)}, members), with_a_newcomer);
}

TEST(OwnerWeights, ALinkThatIsQuickAgainComesBackEachTimeLater) {
  const Members members = Three();
  OwnerWeights weights(3);
  const std::vector<MemberId> ids = {Id(0), Id(1), Id(2)};
  // Its own part after that long, when it owns nothing.
  const auto rounds_until_it_owns = [&](milliseconds delivery, bool delivered,
                                        milliseconds control) {
    for (int i = 0; i < 4; ++i) {
      weights.OnRoundDelivered(
          Late({milliseconds(1), milliseconds(2), milliseconds(90)}, milliseconds(16)));
    }
    EXPECT_EQ(weights.Choose(0, ids, members), MapOf({0, 1}));
    auto responses = Late({milliseconds(1), milliseconds(2), milliseconds(0)}, control);
    responses[2].receipts.reset();
    responses[2].delivery = delivery;
    responses[2].delivered = delivered;
    for (int i = 1; i <= 1000; ++i) {
      weights.OnRoundDelivered(responses);
      if (weights.Choose(0, ids, members) == MapOf({0, 1, 2})) return i;
    }
    return 0;
  };
  EXPECT_EQ(rounds_until_it_owns(milliseconds(50), true, milliseconds(2)), 32);
  EXPECT_EQ(rounds_until_it_owns(milliseconds(50), true, milliseconds(2)), 64);
  EXPECT_EQ(rounds_until_it_owns(milliseconds(150), true, milliseconds(2)), 0);
  EXPECT_EQ(rounds_until_it_owns(milliseconds(50), true, milliseconds(16)), 0);
  EXPECT_EQ(rounds_until_it_owns(milliseconds(50), false, milliseconds(2)), 0);
}

TEST(OwnerWeights, WhoHasABrokenEdgeOrIsOnTrialDoesNotOwn) {
  Members members = ThreeLive();
  OwnerWeights weights(3);
  const std::vector<MemberId> ids = {Id(0), Id(1), Id(2)};
  members.at(WorkerId(0)).owner_trial.Fail(RoundId(3));
  EXPECT_EQ(weights.Choose(0, ids, members), MapOf({1, 2}));
  members.AddBrokenEdge(WorkerId(1), WorkerId(0));
  EXPECT_EQ(weights.Choose(0, ids, members), MapOf({2}));
}

// Where all are on trial, those who have failed least often own.
TEST(OwnerWeights, WhoFailedAgainAndAgainOwnsAfterTheOthers) {
  Members members = ThreeLive();
  OwnerWeights weights(3);
  const std::vector<MemberId> ids = {Id(0), Id(1), Id(2)};
  for (std::uint32_t i : {0u, 1u, 2u}) members.at(WorkerId(i)).owner_trial.Fail(RoundId(3));
  EXPECT_EQ(weights.Choose(0, ids, members), MapOf({0, 1, 2}));
  members.at(WorkerId(1)).owner_trial.Fail(RoundId(4));
  EXPECT_EQ(weights.Choose(0, ids, members), MapOf({0, 2}));
  members.AddBrokenEdge(WorkerId(0), WorkerId(2));
  EXPECT_EQ(weights.Choose(0, ids, members), MapOf({0, 2}));
}

// How many rounds it contributes to until it owns again.
std::uint64_t RoundsOnTrial(OwnerTrial* trial, RoundId failed) {
  trial->Fail(failed);
  std::uint64_t rounds = 0;
  while (trial->on()) trial->OnContributed(RoundId(failed.value + ++rounds));
  return rounds;
}

TEST(OwnerTrial, TakesTwiceAsLongEachTimeUpToABound) {
  OwnerTrial trial;
  RoundId round(10);
  for (std::uint64_t length : {1, 2, 4, 8, 16, 32, 64, 64}) {
    EXPECT_EQ(RoundsOnTrial(&trial, round), length);
    round.value += 1000;
  }
}

TEST(OwnerTrial, ARoundCountsOnceInHoweverManyAttempts) {
  OwnerTrial trial;
  trial.Fail(RoundId(5));
  trial.Fail(RoundId(5));
  for (int attempt = 0; attempt < 3; ++attempt) trial.OnContributed(RoundId(5));
  for (int attempt = 0; attempt < 3; ++attempt) trial.OnContributed(RoundId(6));
  EXPECT_TRUE(trial.on());
  trial.OnContributed(RoundId(7));
  EXPECT_FALSE(trial.on());
}

TEST(OwnerTrial, WhatItFailedIsForgottenOnceItHasPublishedAsLong) {
  OwnerTrial trial;
  EXPECT_EQ(RoundsOnTrial(&trial, RoundId(1)), 1u);
  EXPECT_EQ(RoundsOnTrial(&trial, RoundId(10)), 2u);
  trial.OnPublished();
  EXPECT_EQ(RoundsOnTrial(&trial, RoundId(20)), 4u);
  for (int i = 0; i < 4; ++i) trial.OnPublished();
  EXPECT_EQ(trial.failures(), 0u);
  EXPECT_EQ(RoundsOnTrial(&trial, RoundId(30)), 1u);
}

TEST(OwnerWeights, EdgesToWhoTakesNoPartAreNoFault) {
  Members members = ThreeLive();
  OwnerWeights weights(3);
  members.AddBrokenEdge(WorkerId(0), WorkerId(1));
  Bring(members, members.at(WorkerId(1)), MemberState::kBehind, Time{});
  const std::vector<MemberId> level = {Id(0), Id(2)};
  EXPECT_EQ(weights.Choose(0, level, members), MapOf({0, 2}));
  Bring(members, members.at(WorkerId(1)), MemberState::kCatchingUp, Time{});
  EXPECT_EQ(weights.Choose(0, level, members), MapOf({2}));
  EXPECT_TRUE(members.AnyBroken());
  members.Free(members.at(WorkerId(1)), Time{});
  EXPECT_FALSE(members.AnyBroken());
}

}  // namespace
}  // namespace lockstep::coordinator
