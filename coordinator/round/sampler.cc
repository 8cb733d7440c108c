#include "coordinator/round/sampler.h"

#include <algorithm>

#include "base/check.h"

namespace lockstep::coordinator {

Sampler::Sampler(std::uint64_t epoch_samples, std::uint64_t samples, std::uint32_t units)
    : epoch_samples_(epoch_samples), round_samples_(samples) {
  LOCKSTEP_CHECK(epoch_samples > 0 && samples > 0, "a sampler of {} samples, {} in a round",
                 epoch_samples, samples);
  SetUnits(units);
}

double Sampler::WholeRounds() const {
  const std::uint64_t in_epoch = (epoch_samples_ + round_samples_ - 1) / round_samples_;
  return static_cast<double>(epoch_.value * in_epoch) +
         static_cast<double>(counted()) / static_cast<double>(round_samples_);
}

// No unit is larger than an equal share of a full round; those of fragments may be smaller.
void Sampler::SetUnits(std::uint32_t units) {
  LOCKSTEP_CHECK(units > 0 && units <= round_samples_, "{} samples of a round in {} units",
                 round_samples_, units);
  unit_samples_ = (round_samples_ + units - 1) / units;
}

// Restores from a checkpoint, which is of closed rounds: every position that it does not name as
// uncounted was counted, and nothing is out.
Sampler::Sampler(const SamplerState& state, std::uint64_t samples, std::uint32_t units)
    : Sampler(state.epoch_samples, samples, units) {
  epoch_ = state.epoch;
  fresh_ = epoch_samples_;
  std::uint64_t counted_to = 0;
  const auto count = [this, &counted_to](std::uint64_t to) {
    LOCKSTEP_CHECK(counted_.Add({counted_to, to}), "a position was counted twice");
  };
  for (const SampleRange& range : state.uncounted) {
    LOCKSTEP_CHECK(range.from >= counted_to && range.from < range.to && range.to <= epoch_samples_,
                   "the uncounted ranges are not ascending");
    count(range.from);
    counted_to = range.to;
    // The tail was never planned; to the pool belongs what lies before it.
    if (range.to == epoch_samples_) {
      fresh_ = range.from;
    } else {
      LOCKSTEP_CHECK(pool_.Add(range), "a position was given back twice");
    }
  }
  count(epoch_samples_);
}

// Cuts a fragment that was given back into units of nearly the same size.
void Sampler::AppendUnits(SampleRange range, std::vector<Unit>* units) const {
  LOCKSTEP_CHECK(range.size() > 0, "units of no samples");
  const std::uint64_t pieces = (range.size() + unit_samples_ - 1) / unit_samples_;
  for (std::uint64_t i = 0; i < pieces; ++i) {
    const SampleRange piece{range.from + range.size() * i / pieces,
                            range.from + range.size() * (i + 1) / pieces};
    units->push_back({UnitIndex(static_cast<std::uint32_t>(units->size())), piece});
  }
}

// Returns as many as asked while the epoch has more, so only the last round is smaller.
PlannedUnits Sampler::PlanRound() {
  LOCKSTEP_CHECK(out_.empty(), "a round is out already");
  PlannedUnits plan = PlanMore(round_samples_);
  LOCKSTEP_CHECK(!plan.units.empty(), "an epoch that is finished was planned");
  return plan;
}

// Ranges that were given back come first, in the order of positions, so that an epoch does not end
// with many fragments.
PlannedUnits Sampler::PlanMore(std::uint64_t samples) {
  PlannedUnits plan;
  plan.epoch = epoch_;
  const auto take = [&](SampleRange range) {
    AppendUnits(range, &plan.units);
    plan.samples += range.size();
    LOCKSTEP_CHECK(out_.Add(range) && !counted_.Intersects(range), "[{}, {}) was served twice",
                   range.from, range.to);
  };
  while (plan.samples < samples && !pool_.empty()) {
    take(pool_.TakeFront(samples - plan.samples));
  }
  plan.given_back = static_cast<std::uint32_t>(plan.units.size());
  if (plan.samples < samples && fresh_ < epoch_samples_) {
    const std::uint64_t to = std::min(epoch_samples_, fresh_ + samples - plan.samples);
    take({fresh_, to});
    fresh_ = to;
  }
  LOCKSTEP_CHECK(plan.samples <= samples, "{} samples are planned instead of {}", plan.samples,
                 samples);
  plan.exact = pool_.empty() && fresh_ == epoch_samples_;
  return plan;
}

// I2: each range that is counted was out and has never been counted; a violation ends the process,
// because an epoch that counts a sample twice is wrong for good.
void Sampler::Settle(const std::vector<SampleRange>& counted,
                     const std::vector<SampleRange>& kept) {
  LOCKSTEP_CHECK(!out_.empty(), "no round is out");
  IntervalSet still_out;
  IntervalSet settled;
  for (const SampleRange& range : counted) {
    LOCKSTEP_CHECK(out_.Covers(range), "[{}, {}) is not of this round", range.from, range.to);
    LOCKSTEP_CHECK(counted_.Add(range) && settled.Add(range), "[{}, {}) would count twice",
                   range.from, range.to);
  }
  for (const SampleRange& range : kept) {
    LOCKSTEP_CHECK(out_.Covers(range), "[{}, {}) is not of this round", range.from, range.to);
    LOCKSTEP_CHECK(still_out.Add(range) && settled.Add(range), "[{}, {}) is kept and counted",
                   range.from, range.to);
  }
  while (!out_.empty()) {
    SampleRange range = out_.TakeFront(out_.positions());
    // The gaps between the settled ranges go back: they were planned and are in no commit, for
    // example because their worker was left out or lost.
    std::uint64_t at = range.from;
    for (const SampleRange& done : settled.Within(range)) {
      LOCKSTEP_CHECK(pool_.Add({at, done.from}), "a position was given back twice");
      at = done.to;
    }
    LOCKSTEP_CHECK(pool_.Add({at, range.to}), "a position was given back twice");
  }
  out_ = std::move(still_out);
  LOCKSTEP_CHECK(counted_.positions() <= epoch_samples_, "I2: {} samples count in an epoch of {}",
                 counted_.positions(), epoch_samples_);
  if (counted_.positions() == epoch_samples_) {
    LOCKSTEP_CHECK(pool_.empty() && fresh_ == epoch_samples_, "an epoch ends with work left");
    epoch_ = epoch_.Next();
    counted_ = {};
    fresh_ = 0;
  }
}

// A checkpoint is of closed rounds: what is out is not counted yet, and will be served again by who
// resumes from there.
SamplerState Sampler::State() const {
  IntervalSet left = pool_;
  for (const SampleRange& range : out_.Ranges()) {
    LOCKSTEP_CHECK(left.Add(range), "[{}, {}) is out and given back", range.from, range.to);
  }
  LOCKSTEP_CHECK(
      left.positions() + (epoch_samples_ - fresh_) + counted_.positions() == epoch_samples_,
      "I2: {} samples are left, {} fresh and {} counted of {}", left.positions(),
      epoch_samples_ - fresh_, counted_.positions(), epoch_samples_);
  SamplerState state{epoch_samples_, epoch_, left.Ranges()};
  if (fresh_ < epoch_samples_) {
    if (!state.uncounted.empty() && state.uncounted.back().to == fresh_) {
      state.uncounted.back().to = epoch_samples_;
    } else {
      state.uncounted.push_back({fresh_, epoch_samples_});
    }
  }
  return state;
}

}  // namespace lockstep::coordinator
