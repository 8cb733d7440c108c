// I2 of the sampler under any sequence of rounds, partial commits, undone commits and restarts.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "coordinator/round/sampler.h"
#include "tests/property_check.h"

namespace lockstep::coordinator {
namespace {

RC_GTEST_PROP(Sampler, CountsEachPositionOfAnEpochOnce, ()) {
  const auto samples = *rc::gen::inRange<std::uint64_t>(1, 300);
  const auto batch = *rc::gen::inRange<std::uint64_t>(1, 60);
  const auto units = *rc::gen::inRange<std::uint32_t>(1, static_cast<std::uint32_t>(batch) + 1);
  Sampler sampler(samples, batch, units);
  IntervalSet counted;
  std::uint32_t idle_rounds = 0;
  while (sampler.epoch() == Epoch(0)) {
    const PlannedUnits plan = sampler.PlanRound();
    RC_ASSERT(plan.samples <= batch &&
              plan.samples == std::min(batch, samples - counted.positions()));
    RC_ASSERT(plan.exact == (plan.samples == samples - counted.positions()));
    std::vector<SampleRange> done;
    for (const Unit& unit : plan.units) {
      RC_ASSERT(unit.range.size() >= 1 && unit.range.size() <= (batch + units - 1) / units);
      // In the end everything is computed.
      if (idle_rounds > 20 || *rc::gen::arbitrary<bool>()) done.push_back(unit.range);
    }
    if (*rc::gen::arbitrary<bool>()) {
      const Sampler before = sampler;
      sampler.Settle({plan.units.front().range});
      sampler = before;
    }
    for (const SampleRange& range : done) RC_ASSERT(counted.Add(range));
    sampler.Settle(done);
    RC_ASSERT(sampler.given_back() <= batch);
    if (*rc::gen::inRange(0, 4) == 0) sampler = Sampler(sampler.State(), batch, units);
    ++idle_rounds;
  }
  RC_ASSERT(counted.positions() == samples);
  RC_ASSERT(sampler.counted() == 0u);
}

}  // namespace
}  // namespace lockstep::coordinator
