#include "tools/simulate/compute_model.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace lockstep::simulate {
namespace {

// exp(sigma * z), z standard normal (Box and Muller 1958).
double LogNormal(double sigma, RandomStream& random) {
  if (sigma == 0) return 1;
  const double u = 1.0 - static_cast<double>(random.NextUniform());
  const double v = static_cast<double>(random.NextUniform());
  const double z = std::sqrt(-2 * std::log(u)) * std::cos(2 * std::numbers::pi * v);
  return std::exp(sigma * z);
}

}  // namespace

Duration EvenCompute::UnitTime(WorkerId worker, Time, RoundId, Epoch, const Unit&, std::uint32_t,
                               RandomStream& random) {
  const Duration time =
      unit_time_ / 2 + Duration(random.NextBelow(static_cast<std::uint64_t>(unit_time_.count())));
  if (!slow_.contains(worker.value)) return time;
  return FromSeconds(Seconds(time) * slow_factor_);
}

ModelCompute::ModelCompute(UnitTimeOptions options, std::uint64_t seed, Time start,
                           std::uint32_t workers)
    : options_(std::move(options)), start_(start), slowdowns_(options_.slowdowns, workers) {
  for (std::uint32_t w = 0; w < workers; ++w) {
    RandomStream random(seed, 4, w);
    worker_factor_.push_back(LogNormal(options_.worker_spread, random));
  }
  nominal_.resize(workers);
}

Duration ModelCompute::UnitTime(WorkerId worker, Time now, RoundId round, Epoch epoch,
                                const Unit& unit, std::uint32_t run, RandomStream& random) {
  double unit_time = Seconds(options_.unit_time);
  if (options_.costs) {
    unit_time = options_.costs->SecondsOf(epoch, unit.range);
  } else if (options_.unit_samples > 0) {
    unit_time *= static_cast<double>(unit.range.size()) / options_.unit_samples;
  }
  const double seconds = (unit_time + Seconds(options_.run_time) / run) *
                         worker_factor_[worker.value] * LogNormal(options_.spread, random);
  const Duration nominal = std::max(FromSeconds(seconds), Duration(1000));
  nominal_[worker.value] = nominal;
  return slowdowns_.Lengthen(worker, round, unit.index.value, now - start_, nominal);
}

std::optional<Time> ModelCompute::LetsGo(WorkerId worker, RoundId round, const Unit& unit,
                                         Time began, Time now) const {
  const Time stalled_until = began + slowdowns_.Stall(worker, round, unit.index.value,
                                                      began - start_, nominal_[worker.value]);
  return start_ + slowdowns_.PauseEnd(worker, std::max(stalled_until, now) - start_);
}

}  // namespace lockstep::simulate
