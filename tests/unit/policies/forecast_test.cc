#include "policies/forecast.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lockstep::policies {
namespace {

using std::chrono::milliseconds;
using ::testing::Each;
using ::testing::ElementsAre;

constexpr Time kNow{std::chrono::seconds(5)};
constexpr double kRate = 1000;  // samples a second

WorkerForecast Late(int begun_ms, int unit_ms, std::uint32_t movable, double samples) {
  const Time begun_end = kNow + milliseconds(begun_ms);
  return {begun_end, begun_end, milliseconds(unit_ms), movable, true, samples};
}
const WorkerForecast kFinished{kNow, kNow, milliseconds(10), 0, true, 0};

TEST(Forecast, NobodyIsLeftOutAmongEquals) {
  Forecast forecast;
  const std::vector<WorkerForecast> all(4, Late(10, 10, 3, 40));
  EXPECT_THAT(forecast.LeftOut(all, kNow, kRate, 80), Each(false));
  EXPECT_NEAR(Seconds(forecast.end() - kNow), 0.04, 1e-4);
}

TEST(Forecast, WhoTakesLongerThanItsSamplesAreWorthIsLeftOut) {
  Forecast forecast;
  std::vector<WorkerForecast> all = {kFinished, kFinished, Late(45, 10, 0, 40)};
  EXPECT_THAT(forecast.LeftOut(all, kNow, kRate, 100), ElementsAre(false, false, true));
  EXPECT_EQ(forecast.end(), kNow);
  EXPECT_EQ(forecast.whole(), kNow + milliseconds(45));
  EXPECT_EQ(forecast.lost(), 40);
  all[2] = Late(35, 10, 0, 40);
  EXPECT_THAT(forecast.LeftOut(all, kNow, kRate, 100), Each(false));
  EXPECT_EQ(forecast.lost(), 0);
}

TEST(Forecast, WithoutARateTimeIsWorthNothing) {
  Forecast forecast;
  EXPECT_THAT(forecast.LeftOut({kFinished, Late(1000, 10, 0, 1)}, kNow, 0, 100), Each(false));
}

TEST(Forecast, WhatCanMoveIsNotWaitedFor) {
  Forecast forecast;
  // Six units of a slow worker are two of each of three others.
  const std::vector<WorkerForecast> all = {kFinished, kFinished, kFinished, Late(5, 10, 6, 40)};
  EXPECT_THAT(forecast.LeftOut(all, kNow, kRate, 100), Each(false));
  EXPECT_NEAR(Seconds(forecast.end() - kNow), 0.02, 1e-4);
}

TEST(Forecast, WhoCannotHelpGetsNothing) {
  Forecast forecast;
  std::vector<WorkerForecast> all = {kFinished, kFinished, Late(5, 10, 6, 40)};
  all[0].can_help = all[1].can_help = false;
  EXPECT_THAT(forecast.LeftOut(all, kNow, kRate, 100), ElementsAre(false, false, true));
  EXPECT_NEAR(Seconds(forecast.whole() - kNow), 0.065, 1e-4);
}

TEST(Forecast, HelpThatIsDeliveredLateIsNoHelp) {
  Forecast forecast;
  std::vector<WorkerForecast> all = {kFinished, kFinished, kFinished, Late(5, 10, 6, 40)};
  for (WorkerForecast& worker_forecast : all) worker_forecast.helps_from += milliseconds(30);
  EXPECT_THAT(forecast.LeftOut(all, kNow, kRate, 100), ElementsAre(false, false, false, true));
  EXPECT_NEAR(Seconds(forecast.whole() - kNow), 0.05, 1e-4);
}

TEST(Forecast, OneUnitMoreForOthersMayCostMoreThanASlowWorkerIsWorth) {
  Forecast forecast;
  // Three units to be shared by seven: one unit more for three of them.
  std::vector<WorkerForecast> all(7, Late(10, 50, 3, 4 * 8));
  all.push_back(Late(40, 200, 3, 4 * 8));
  EXPECT_THAT(forecast.LeftOut(all, kNow, 8 * 32 / 0.2, 128),
              ElementsAre(false, false, false, false, false, false, false, true));
}

TEST(Forecast, SeveralAreLeftOutTogetherWhereOneAloneWouldSaveNothing) {
  Forecast forecast;
  const std::vector<WorkerForecast> all = {kFinished, Late(100, 10, 0, 40), Late(100, 10, 0, 40)};
  EXPECT_THAT(forecast.LeftOut(all, kNow, kRate, 100), ElementsAre(false, true, true));
}

TEST(Forecast, NeverMoreThanCanBeSpared) {
  Forecast forecast;
  const std::vector<WorkerForecast> all = {kFinished, Late(400, 10, 0, 40), Late(900, 10, 0, 40)};
  EXPECT_THAT(forecast.LeftOut(all, kNow, kRate, 79), ElementsAre(false, false, true));
  EXPECT_THAT(forecast.LeftOut(all, kNow, kRate, 39), Each(false));
}

TEST(Forecast, OfAWorkerCountsWhatIsNotDelivered) {
  std::vector<WorkerView> workers(3);
  for (WorkerView& worker : workers) {
    worker.units_given = worker.units_planned = 4;
    worker.samples_given = 32;
    worker.takes_units = true;
    worker.progressed_at = kNow;
  }
  // Done; delivering for 30 ms what usually takes 4 and another worker 10; with a unit to compute.
  workers[0].units_done = workers[0].units_taken = 4;
  workers[0].parts.push_back({PartIndex(0), 32, kNow - milliseconds(30), kNow - milliseconds(20)});
  workers[0].finished_at = kNow - milliseconds(20);
  workers[1].units_done = workers[1].units_taken = 4;
  workers[1].parts.push_back({PartIndex(0), 32, kNow - milliseconds(30), std::nullopt});
  workers[2].units_done = workers[2].units_taken = 3;
  workers[2].parts.push_back({PartIndex(0), 24, kNow - milliseconds(10), kNow});
  RoundView view;
  view.now = kNow;
  view.started = kNow - milliseconds(60);
  view.workers = workers;
  const std::vector<WorkerEstimate> estimates = {
      {milliseconds(10), kNow, 0, true, true},
      {milliseconds(10), kNow, 0, true, true},
      {milliseconds(10), kNow + milliseconds(10), 1, true, false},
  };
  std::vector<WorkerForecast> worker_forecasts;
  ForecastWorkers(view, estimates, milliseconds(4), &worker_forecasts);
  EXPECT_EQ(worker_forecasts[0].samples, 0);
  EXPECT_EQ(worker_forecasts[0].begun_end, kNow);
  EXPECT_EQ(worker_forecasts[0].helps_from, kNow + milliseconds(4)) << "a second part";
  EXPECT_EQ(worker_forecasts[1].samples, 32);
  EXPECT_EQ(worker_forecasts[1].begun_end, kNow + milliseconds(20));
  EXPECT_EQ(worker_forecasts[2].samples, 8);
  EXPECT_EQ(worker_forecasts[2].movable, 1u);
  EXPECT_EQ(worker_forecasts[2].begun_end, kNow + milliseconds(4));
  // What it is promised may move yet, and is counted with its giver.
  std::vector<WorkerEstimate> promised = estimates;
  promised[2].end += milliseconds(20);
  promised[2].promised = milliseconds(20);
  worker_forecasts.clear();
  ForecastWorkers(view, promised, milliseconds(4), &worker_forecasts);
  EXPECT_EQ(worker_forecasts[2].begun_end, kNow + milliseconds(4));
}

}  // namespace
}  // namespace lockstep::policies
