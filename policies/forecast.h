// Decides whether a round is better closed without late workers: what their samples are worth
// against the time of waiting for them.
//
// A round's time is worth the samples that the job makes in it. So the best set of workers to leave
// out is the one with the most samples less rate x time. That rule, applied with the rate that it
// leads to, makes the most samples per second (the marginal value theorem; for renewal processes
// e.g. Ross, Introduction to Stochastic Dynamic Programming, 1983, chapter III). A worker in a unit
// that takes longer than usual is expected to need as long again as it is overdue. So the job never
// waits for a worker much longer than its samples are worth.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/time.h"
#include "policies/policy.h"
#include "policies/standings.h"

namespace lockstep::policies {

// One worker's part in the end of a round.
struct WorkerForecast {
  Time begun_end;   // when what cannot be taken from it any more is delivered
  Time helps_from;  // what it is given besides is delivered one unit time for each after this
  Duration unit_time{};
  std::uint32_t movable = 0;  // units that could be given to others
  bool can_help = false;      // may be given some
  double samples = 0;         // that are lost when it is left out
  Time end() const { return movable > 0 ? helps_from + unit_time * movable : begun_end; }
};

class Forecast {
 public:
  // Fills a vector parallel to `worker_forecasts`: true is who is left out. The rest shares its
  // movable units as quickly as whole units allow. `rate`: samples a second; `spare`: so many
  // samples may be left out at most. Workers with zero samples are never left out.
  const std::vector<bool>& LeftOut(const std::vector<WorkerForecast>& worker_forecasts, Time now,
                                   double rate, double spare);
  // By the last call: when the others are done, when all would be, and what the others lack.
  Time end() const { return end_; }
  Time whole() const { return whole_; }
  double lost() const { return lost_; }

 private:
  // A forecast with times in seconds from now.
  struct Load {
    double begun_end;
    double helps_from;
    double end;
    double units_per_second;
    std::uint32_t movable;
    double most;  // units that it can have
    std::size_t worker;
  };
  // The time when the first `count` of loads_ are done.
  double EndOf(std::size_t count) const;

  std::vector<Load> loads_;  // first those that are never left out, then the latest last
  std::vector<bool> out_;
  Time end_;
  Time whole_;
  double lost_ = 0;
};

// Makes the forecast of each worker of the view. `delivery`: a part's usual time.
void ForecastWorkers(const RoundView& view, const std::vector<WorkerEstimate>& estimates,
                     Duration delivery, std::vector<WorkerForecast>* worker_forecasts);

}  // namespace lockstep::policies
