#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "policies/backup.h"
#include "policies/full.h"
#include "policies/work_none.h"

namespace lockstep::policies {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Workers with eight units each; those in `finished` have delivered them as one part.
struct Round {
  explicit Round(std::uint32_t count) {
    for (std::uint32_t i = 0; i < count; ++i) {
      WorkerView worker;
      worker.member = {WorkerId(i), Incarnation(1)};
      worker.units_given = 8;
      workers.push_back(worker);
    }
    view.configured_workers = view.planned_workers = view.with_units = count;
  }
  Round& Finish(std::uint32_t i) {
    workers[i].units_done = 8;
    workers[i].parts = {{PartIndex(0), 80, Time{}, Time{}}};
    workers[i].finished_at = Time{};
    ++view.finished;
    return *this;
  }
  const RoundView& View() {
    view.workers = workers;
    return view;
  }
  std::vector<WorkerView> workers;
  RoundView view;
};

std::vector<std::uint32_t> Workers(const ClosingVerdict& verdict) {
  std::vector<std::uint32_t> ids;
  for (const PartChoice& part : verdict.parts) ids.push_back(part.worker.value);
  return ids;
}

TEST(Full, ClosesWhenAllHaveFinished) {
  auto rule = MakeFull();
  Round round(3);
  round.Finish(0).Finish(2);
  EXPECT_FALSE(rule->Judge(round.View()).close);
  round.Finish(1);
  const ClosingVerdict verdict = rule->Judge(round.View());
  EXPECT_TRUE(verdict.close);
  EXPECT_THAT(Workers(verdict), ElementsAre(0, 1, 2));
  EXPECT_THAT(verdict.reason, HasSubstr("all 3"));
}

TEST(Full, DoesNotCloseOverNothing) {
  Round round(2);
  round.view.with_units = 0;
  EXPECT_FALSE(MakeFull()->Judge(round.View()).close);
}

TEST(Full, CannotDoWithoutLostWork) { EXPECT_FALSE(MakeFull()->CanDoWithout(Round(3).View())); }

TEST(Full, SaysForWhomItWaits) {
  Round round(4);
  round.Finish(0);
  round.workers[2].units_done = 2;
  round.workers[1].units_done = 5;
  round.workers[3].units_done = 6;
  round.view.explain = true;
  EXPECT_EQ(MakeFull()->Judge(round.View()).reason,
            "waiting for worker 2 (2 of 8 units done) and 2 others");
}

TEST(Full, TellsSlowLinksFromSlowWork) {
  Round round(2);
  round.Finish(0);
  round.workers[1].units_done = 8;
  round.view.explain = true;
  EXPECT_THAT(MakeFull()->Judge(round.View()).reason, HasSubstr("on their way"));
}

TEST(Backup, ClosesOverTheFirstSevenOfEight) {
  auto rule = MakeBackup(1);
  Round round(8);
  for (std::uint32_t i : {7u, 6u, 5u, 3u, 2u, 1u}) round.Finish(i);
  EXPECT_FALSE(rule->Judge(round.View()).close);
  round.Finish(0);
  const ClosingVerdict verdict = rule->Judge(round.View());
  EXPECT_TRUE(verdict.close);
  EXPECT_THAT(Workers(verdict), ElementsAre(0, 1, 2, 3, 5, 6, 7));
  EXPECT_THAT(verdict.reason, HasSubstr("first 7 of 8"));
}

TEST(Backup, WaitsForAllThatHaveUnitsWhenThereAreFewer) {
  auto rule = MakeBackup(2);
  Round round(8);
  round.view.with_units = 3;
  round.Finish(0).Finish(1);
  EXPECT_FALSE(rule->Judge(round.View()).close);
  round.Finish(2);
  EXPECT_TRUE(rule->Judge(round.View()).close);
}

TEST(Backup, AnExactRoundIsAwaitedWhole) {
  auto rule = MakeBackup(1);
  Round round(3);
  round.view.exact = true;
  round.Finish(0).Finish(1);
  EXPECT_FALSE(rule->Judge(round.View()).close);
  EXPECT_FALSE(rule->CanDoWithout(round.View()));
  round.Finish(2);
  EXPECT_TRUE(rule->Judge(round.View()).close);
}

TEST(Backup, CanDoWithoutAsManyAsItSpares) {
  auto rule = MakeBackup(2);
  Round round(8);
  round.view.with_units = 6;
  EXPECT_TRUE(rule->CanDoWithout(round.View()));
  round.view.with_units = 5;
  EXPECT_FALSE(rule->CanDoWithout(round.View()));
  EXPECT_EQ(rule->Spare(), 2u);
}

TEST(Backup, FencedWorkersAreLeftOut) {
  Round round(3);
  round.Finish(0).Finish(1).Finish(2);
  round.workers[1].fenced = true;
  round.view.with_units = round.view.finished = 2;
  EXPECT_THAT(Workers(MakeBackup(1)->Judge(round.View())), ElementsAre(0, 2));
}

TEST(WorkNone, SharesEquallyAndSpreadsTheRemainder) {
  auto rule = MakeWorkNone();
  Round round(4);
  EXPECT_THAT(rule->Share(round.View().workers, 8), ElementsAre(2, 2, 2, 2));
  EXPECT_THAT(rule->Share(round.View().workers, 10), ElementsAre(3, 3, 2, 2));
  EXPECT_THAT(rule->Share(round.View().workers, 3), ElementsAre(1, 1, 1, 0));
  EXPECT_TRUE(rule->Share({}, 3).empty());
  EXPECT_TRUE(rule->Judge(round.View()).moves.empty());
}

}  // namespace
}  // namespace lockstep::policies
