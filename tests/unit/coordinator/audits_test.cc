// A worker that computes wrong gradients is found, named rightly, and nobody else is.
#include "coordinator/round/audits.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include "base/random.h"

namespace lockstep::coordinator {
namespace {

using Finding = Audits::Finding;

MemberId NumberedMember(std::uint32_t worker) { return {WorkerId(worker), Incarnation(1)}; }

std::vector<MemberId> NumberedMembers(std::uint32_t count) {
  std::vector<MemberId> members;
  for (std::uint32_t i = 0; i < count; ++i) members.push_back(NumberedMember(i));
  return members;
}

Plan PlanOf(std::uint64_t round, std::uint32_t workers, std::uint32_t units) {
  Plan plan;
  plan.round = RoundId(round);
  plan.members = NumberedMembers(workers);
  std::uint32_t index = 0;
  for (const MemberId& member : plan.members) {
    Assignment assignment{member, {}, {}};
    for (std::uint32_t i = 0; i < units; ++i, ++index) {
      assignment.units.push_back({UnitIndex(index), {index, index + 1}});
    }
    plan.assignments.push_back(assignment);
  }
  return plan;
}

msg::Audited Came(const Plan& plan, const Unit& unit, double wrong = 0,
                  const std::string& arithmetic = "one") {
  msg::Audited audited;
  audited.round = plan.round;
  audited.plan = plan.attempt;
  audited.unit = unit;
  audited.bits = {unit.range.from, wrong == 0 ? 0u : 1u};
  audited.sketch.assign(msg::kAuditCounters, 1.0);
  audited.sketch[3] += wrong;
  audited.squares = static_cast<double>(msg::kAuditCounters);
  audited.arithmetic = arithmetic;
  return audited;
}

// Rounds in which all answer, each with what `wrong` says of it, until something is found.
struct Hunt {
  std::uint64_t rounds = 0;
  std::vector<Finding> findings;
};
Hunt Rounds(Audits& audits, std::uint32_t workers, std::uint64_t most,
            const std::function<double(std::uint32_t, std::uint64_t)>& wrong,
            std::uint64_t first = 0) {
  for (std::uint64_t round = first; round < first + most; ++round) {
    Plan plan = PlanOf(round, workers, 4);
    plan.audits = audits.Choose(plan, plan.members);
    std::vector<Finding> findings;
    for (const Audit& audit : plan.audits) {
      std::vector<MemberId> who = audit.by;
      who.push_back(audit.subject);
      for (const MemberId& member : who) {
        const auto found =
            audits.OnAudited(member, Came(plan, audit.unit, wrong(member.worker.value, round)));
        findings.insert(findings.end(), found.begin(), found.end());
      }
    }
    const auto over = audits.OnOver(plan.round);
    findings.insert(findings.end(), over.begin(), over.end());
    if (!findings.empty()) return {round - first + 1, findings};
  }
  return {most, {}};
}

TEST(Audits, AShareOfTheUnitsIsComputedTwiceByAnotherWorker) {
  Audits audits({.share = 0.05, .tolerance = 0, .seed = 3});
  std::uint64_t chosen = 0;
  std::set<std::uint32_t> by;
  for (std::uint64_t round = 0; round < 1000; ++round) {
    const Plan plan = PlanOf(round, 5, 4);
    for (const Audit& audit : audits.Choose(plan, plan.members)) {
      ++chosen;
      ASSERT_EQ(audit.by.size(), 1u);
      EXPECT_NE(audit.by[0], audit.subject);
      EXPECT_EQ(audit.unit, plan.assignments[audit.subject.worker.value].units[0]);
      by.insert(audit.by[0].worker.value);
    }
    audits.OnOver(plan.round);
  }
  EXPECT_NEAR(static_cast<double>(chosen), 0.05 * 20 * 1000, 100);  // 3 standard deviations
  EXPECT_EQ(by.size(), 5u);
}

TEST(Audits, NothingIsChosenWhereNobodyElseIsThereOrWorkGoesOnBetweenRounds) {
  Audits audits({.share = 1, .tolerance = 0, .seed = 3});
  const Plan alone = PlanOf(0, 1, 4);
  EXPECT_TRUE(audits.Choose(alone, alone.members).empty());
  Plan relaxed = PlanOf(0, 3, 4);
  relaxed.relaxed = true;
  EXPECT_TRUE(audits.Choose(relaxed, relaxed.members).empty());
  EXPECT_EQ(audits.Choose(PlanOf(0, 3, 4), NumberedMembers(3)).size(), 3u);
}

TEST(Audits, TheWrongOneIsNamedAndNobodyElse) {
  for (std::uint32_t culprit = 0; culprit < 4; ++culprit) {
    Audits audits({.share = 0.1, .tolerance = 0, .seed = culprit});
    const auto wrong = [&](std::uint32_t worker, std::uint64_t) {
      return worker == culprit ? 1e-3 : 0.0;
    };
    Hunt hunt = Rounds(audits, 4, 1000, wrong);
    ASSERT_FALSE(hunt.findings.empty());
    EXPECT_EQ(hunt.findings[0].kind, Finding::Kind::kDiffer);
    EXPECT_NE(hunt.findings[0].text.find(std::to_string(culprit)), std::string::npos);
    hunt = Rounds(audits, 4, 10, wrong, hunt.rounds);
    ASSERT_EQ(hunt.findings.size(), 1u);
    EXPECT_EQ(hunt.rounds, 1u) << "the next round decides";
    EXPECT_EQ(hunt.findings[0].kind, Finding::Kind::kWrong);
    EXPECT_EQ(hunt.findings[0].worker, NumberedMember(culprit));
    EXPECT_EQ(audits.record().wrong, std::vector{WorkerId(culprit)});
  }
}

// The units of the whole job until the verdict, in 20 jobs.
TEST(Audits, ItTakesFewUnitsToFindTheWrongOne) {
  constexpr double kShare = 0.001;
  constexpr std::uint32_t kWorkers = 4;
  std::vector<double> units;
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    Audits audits({.share = kShare, .tolerance = 0, .seed = seed});
    std::uint64_t rounds = 0;
    for (int findings = 0; findings < 2; ++findings) {
      const Hunt hunt = Rounds(
          audits, kWorkers, 100000,
          [&](std::uint32_t worker, std::uint64_t) { return worker == seed % 4 ? 1e-3 : 0.0; },
          rounds);
      ASSERT_FALSE(hunt.findings.empty());
      rounds += hunt.rounds;
    }
    ASSERT_EQ(audits.record().wrong, std::vector{WorkerId(seed % 4)});
    units.push_back(static_cast<double>(rounds * kWorkers * 4));
  }
  std::ranges::sort(units);
  RecordProperty("median_units", std::to_string(units[10]));
  EXPECT_LT(units[10], 3 / kShare);
}

TEST(Audits, NobodyIsSuspectedInSoundRounds) {
  Audits audits({.share = 0.1, .tolerance = 0, .seed = 1});
  EXPECT_TRUE(Rounds(audits, 4, 20000, [](auto, auto) { return 0; }).findings.empty());
  EXPECT_EQ(audits.record().differed, 0u);
  EXPECT_GT(audits.record().units, 20000u);
}

TEST(Audits, WhatDoesNotComeAgainNamesBothAndPutsNobodyOut) {
  Audits audits({.share = 1, .tolerance = 0, .seed = 1});
  Hunt hunt =
      Rounds(audits, 4, 10, [](std::uint32_t worker, auto) { return worker == 2 ? 1e-3 : 0.0; });
  ASSERT_EQ(hunt.findings.at(0).kind, Finding::Kind::kDiffer);
  hunt = Rounds(
      audits, 4, 100, [](auto, auto) { return 0; }, hunt.rounds);
  ASSERT_EQ(hunt.findings.size(), 1u);
  EXPECT_EQ(hunt.findings[0].kind, Finding::Kind::kOver);
  EXPECT_TRUE(audits.record().wrong.empty());
}

TEST(Audits, GradientsThatNeverRepeatEndTheAudits) {
  Audits audits({.share = 1, .tolerance = 0, .seed = 1});
  Plan plan = PlanOf(0, 3, 4);
  std::uint64_t any = 1;
  std::vector<Finding> findings;
  for (std::uint64_t round = 0; round < 3 && findings.size() < 2; ++round) {
    plan = PlanOf(round, 3, 4);
    for (const Audit& audit : audits.Choose(plan, plan.members)) {
      std::vector<MemberId> who = audit.by;
      who.push_back(audit.subject);
      for (const MemberId& member : who) {
        msg::Audited came = Came(plan, audit.unit, 1);
        came.bits.high = ++any;
        const auto found = audits.OnAudited(member, came);
        findings.insert(findings.end(), found.begin(), found.end());
      }
    }
  }
  ASSERT_EQ(findings.size(), 2u);
  EXPECT_EQ(findings[1].kind, Finding::Kind::kUnlike);
  EXPECT_TRUE(audits.Choose(PlanOf(9, 3, 4), NumberedMembers(3)).empty());
  EXPECT_TRUE(audits.record().wrong.empty());
}

TEST(Audits, UnlikeArithmeticIsHeldToTheToleranceAndLikeToTheBits) {
  for (const bool alike : {true, false}) {
    for (const double wrong : {0.004, 0.02}) {  // of a norm of 8
      Audits audits({.share = 1, .tolerance = 1e-3, .seed = 1});
      const Plan plan = PlanOf(0, 2, 4);
      const auto orders = audits.Choose(plan, plan.members);
      ASSERT_FALSE(orders.empty());
      audits.OnAudited(orders[0].subject, Came(plan, orders[0].unit));
      const auto found = audits.OnAudited(
          orders[0].by[0], Came(plan, orders[0].unit, wrong, alike ? "one" : "another"));
      EXPECT_EQ(found.size(), alike || wrong > 0.008 ? 1u : 0u) << alike << wrong;
    }
  }
}

TEST(Audits, WhoDoesNotAnswerIsNotWaitedFor) {
  Audits audits({.share = 1, .tolerance = 0, .seed = 1});
  const Plan plan = PlanOf(0, 3, 4);
  const auto orders = audits.Choose(plan, plan.members);
  ASSERT_FALSE(orders.empty());
  audits.OnAudited(orders[0].subject, Came(plan, orders[0].unit, 1));
  // Neither what nobody was asked for nor a second answer says anything.
  EXPECT_TRUE(audits.OnAudited(orders[0].subject, Came(plan, orders[0].unit)).empty());
  EXPECT_TRUE(audits.OnAudited(orders[0].by[0], Came(plan, {UnitIndex(99), {0, 1}})).empty());
  for (std::uint64_t round = 0; round < 5; ++round) {
    EXPECT_TRUE(audits.OnOver(RoundId(round)).empty());
  }
  EXPECT_TRUE(audits.OnAudited(orders[0].by[0], Came(plan, orders[0].unit)).empty());
  EXPECT_EQ(audits.record().units, 0u);
}

TEST(Audits, ASuspectThatIsGoneIsSuspectedNoMore) {
  Audits audits({.share = 1, .tolerance = 0, .seed = 1});
  const auto wrong = [](std::uint32_t worker, auto) { return worker == 2 ? 1e-3 : 0.0; };
  const Hunt hunt = Rounds(audits, 4, 10, wrong);
  ASSERT_EQ(hunt.findings.at(0).kind, Finding::Kind::kDiffer);
  audits.OnOut(WorkerId(2));
  EXPECT_TRUE(Rounds(
                  audits, 4, 100, [](auto, auto) { return 0; }, hunt.rounds)
                  .findings.empty());
}

TEST(Audits, OfTwoWorkersNobodyCanSayWhichIsWrong) {
  Audits audits({.share = 1, .tolerance = 0, .seed = 1});
  const auto wrong = [](std::uint32_t worker, auto) { return worker == 1 ? 1e-3 : 0.0; };
  const Hunt hunt = Rounds(audits, 2, 10, wrong);
  ASSERT_EQ(hunt.findings.at(0).kind, Finding::Kind::kDiffer);
  EXPECT_TRUE(Rounds(audits, 2, 100, wrong, hunt.rounds).findings.empty());
  EXPECT_TRUE(audits.record().wrong.empty());
  EXPECT_GT(audits.record().differed, 50u);
}

TEST(Audits, AGradientThatIsNoNumberIsNobodysFault) {
  Audits audits({.share = 1, .tolerance = 0, .seed = 1});
  const Plan plan = PlanOf(0, 2, 4);
  const auto orders = audits.Choose(plan, plan.members);
  ASSERT_FALSE(orders.empty());
  msg::Audited came = Came(plan, orders[0].unit, 1);
  came.squares = std::numeric_limits<double>::quiet_NaN();
  audits.OnAudited(orders[0].subject, came);
  came.bits = {};
  EXPECT_TRUE(audits.OnAudited(orders[0].by[0], came).empty());
}

}  // namespace
}  // namespace lockstep::coordinator
