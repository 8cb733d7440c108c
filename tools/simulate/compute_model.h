// How long units take to compute.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <vector>

#include "base/ids.h"
#include "base/messages.h"
#include "base/random.h"
#include "base/slowdown.h"
#include "base/slowdown_spec.h"
#include "base/time.h"
#include "tools/simulate/unit_costs.h"

namespace lockstep::simulate {

class ComputeModel {
 public:
  virtual ~ComputeModel() = default;
  // The time of a unit of this round that the worker begins now, in a run of so many. The unit's
  // range is of this epoch. `random`: the stream of the worker's process.
  virtual Duration UnitTime(WorkerId worker, Time now, RoundId round, Epoch epoch, const Unit& unit,
                            std::uint32_t run, RandomStream& random) = 0;
  // When the worker leaves its unit, which it began then and which has become void now; nullopt
  // where it continues to its end.
  virtual std::optional<Time> LetsGo(WorkerId worker, RoundId round, const Unit& unit, Time began,
                                     Time now) const {
    (void)worker, (void)round, (void)unit, (void)began;
    return now;
  }
};

// Between half and one and a half times `unit_time`, evenly; some workers are slower all the time.
class EvenCompute final : public ComputeModel {
 public:
  EvenCompute(Duration unit_time, std::set<std::uint32_t> slow, double slow_factor)
      : unit_time_(unit_time), slow_(std::move(slow)), slow_factor_(slow_factor) {}
  Duration UnitTime(WorkerId worker, Time now, RoundId round, Epoch epoch, const Unit& unit,
                    std::uint32_t run, RandomStream& random) override;
  std::optional<Time> LetsGo(WorkerId, RoundId, const Unit&, Time, Time) const override {
    return std::nullopt;
  }

 private:
  const Duration unit_time_;
  const std::set<std::uint32_t> slow_;
  const double slow_factor_;
};

struct UnitTimeOptions {
  Duration unit_time = std::chrono::milliseconds(20);
  // The samples of a unit that takes the base time; others take time in proportion. 0: any unit
  // takes it.
  double unit_samples = 0;
  // The base time of each unit, where it belongs to the data; then the two above do not count.
  std::optional<UnitCosts> costs;
  // The spread of the times, log-normal: the standard deviation of the logarithm; 0: all are equal.
  double spread = 0;
  // The same for the workers' own speeds, drawn once for each.
  double worker_spread = 0;
  // The time of a run beside its units, whatever their number.
  Duration run_time{};
  std::vector<SlowdownSpec> slowdowns;
};

// A unit's time in a job: a base with a spread, lengthened by slow-downs. Short units take it too,
// as with emulate.unit_time.
class ModelCompute final : public ComputeModel {
 public:
  // `start`: the slow-downs' times count from it.
  ModelCompute(UnitTimeOptions options, std::uint64_t seed, Time start, std::uint32_t workers);
  Duration UnitTime(WorkerId worker, Time now, RoundId round, Epoch epoch, const Unit& unit,
                    std::uint32_t run, RandomStream& random) override;
  // It acts like a paced worker: at once, or when a present stall has ended.
  std::optional<Time> LetsGo(WorkerId worker, RoundId round, const Unit& unit, Time began,
                             Time now) const override;

 private:
  const UnitTimeOptions options_;
  const Time start_;
  std::vector<double> worker_factor_;
  std::vector<Duration> nominal_;  // by worker: time of its last unit, without slow-downs
  const SlowdownModel slowdowns_;
};

}  // namespace lockstep::simulate
