#include "base/slowdown.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/random.h"

namespace lockstep {
namespace {

using enum SlowdownPattern;

constexpr Duration kForGood = Duration::max();
constexpr double kLongest = 1e18;  // ns; 30 years
// How many changes of a factor within one unit are followed; after that the present one stays.
constexpr int kMostChanges = 1 << 16;

Duration EndOf(const SlowdownSpec& spec) {
  return spec.length ? spec.from + *spec.length : kForGood;
}

bool InWindow(const SlowdownSpec& spec, Duration t) { return t >= spec.from && t < EndOf(spec); }

RandomStream Draws(const SlowdownSpec& spec, WorkerId worker, std::uint64_t key) {
  const auto pattern = static_cast<std::uint64_t>(spec.pattern);
  return RandomStream(spec.seed, (pattern << 32) | worker.value, key);
}

// [0, 1) with 53 bits.
double Uniform(const RandomStream& draws, std::uint64_t i) {
  return static_cast<double>(draws.Word(i) >> 11) * 0x1p-53;
}

// --- what is drawn for a unit

struct Drawn {
  double factor = 1;
  Duration delay{};
};

Drawn DrawUnit(const SlowdownSpec& spec, WorkerId worker, RoundId round, std::uint32_t unit) {
  Drawn drawn;
  const RandomStream draws = Draws(spec, worker, round.value);
  const std::uint64_t first = 2 * std::uint64_t{unit};
  switch (spec.pattern) {
    case kSlowWorker: {
      if (Uniform(draws, first) >= spec.probability) break;
      const double where = Uniform(draws, first + 1);
      drawn.factor = spec.factor + where * (spec.factor_most - spec.factor);
      drawn.delay =
          spec.delay + Duration(std::llround(
                           where * static_cast<double>((spec.delay_most - spec.delay).count())));
      break;
    }
    case kPowerLaw: {
      // Inverse of the bounded Pareto distribution on [1, max].
      const double tail = 1 - std::pow(spec.most, -spec.alpha);
      const double factor = std::pow(1 - Uniform(draws, first) * tail, -1 / spec.alpha);
      drawn.factor = std::clamp(factor, 1.0, spec.most);
      break;
    }
    case kDelay:
      if (Uniform(draws, 0) < spec.probability) drawn.factor = 1 + spec.times;
      break;
    default:
      break;
  }
  return drawn;
}

// --- what changes with time

struct Phase {
  double factor = 1;  // 0: nothing moves
  Duration until = kForGood;
};

Phase PhaseOfTrace(const SlowdownSpec& spec, Duration t) {
  Duration base = spec.from;
  if (spec.loop) base += (t - spec.from) / spec.points.back().at * spec.points.back().at;
  const auto next =
      std::ranges::upper_bound(spec.points, t - base, std::ranges::less(), &TracePoint::at);
  Phase phase;
  if (next != spec.points.begin()) phase.factor = std::max(1.0, std::prev(next)->factor);
  if (next != spec.points.end()) phase.until = base + next->at;
  return phase;
}

Phase PhaseWithin(const SlowdownSpec& spec, std::uint32_t workers, WorkerId worker, Duration t) {
  switch (spec.pattern) {
    case kConstant:
      return {spec.factor, kForGood};
    case kDisrupted: {
      const Duration period = spec.spell + spec.gap;
      const auto spell = (t - spec.from) / period;
      const Duration begin = spec.from + spell * period;
      WorkerId victim;
      if (spec.worker) {
        victim = *spec.worker;
      } else {
        RandomStream draws = Draws(spec, WorkerId(0), static_cast<std::uint64_t>(spell));
        victim = WorkerId(static_cast<std::uint32_t>(
            draws.NextBelow(spec.workers != 0 ? spec.workers : workers)));
      }
      if (victim == worker && t - begin < spec.spell) return {spec.factor, begin + spec.spell};
      return {1, begin + period};
    }
    case kPause: {
      // Each worker has its own phase: with pauses at the same moment there would be no straggler.
      Duration first = spec.from;
      if (!spec.worker) {
        first += Duration(static_cast<Duration::rep>(Uniform(Draws(spec, worker, 0), 0) *
                                                     static_cast<double>(spec.every.count())));
      }
      if (t < first) return {1, first};
      const Duration begin = first + (t - first) / spec.every * spec.every;
      if (t - begin < spec.spell) return {0, begin + spec.spell};
      return {1, begin + spec.every};
    }
    case kTrace:
      return PhaseOfTrace(spec, t);
    default:
      return {};
  }
}

Phase PhaseAt(const SlowdownSpec& spec, std::uint32_t workers, WorkerId worker, Duration t) {
  if (t < spec.from) return {1, spec.from};
  const Duration end = EndOf(spec);
  if (t >= end) return {};
  Phase phase = PhaseWithin(spec, workers, worker, t);
  phase.until = std::min(phase.until, end);
  return phase;
}

}  // namespace

SlowdownModel::SlowdownModel(std::vector<SlowdownSpec> specs, std::uint32_t workers)
    : specs_(std::move(specs)), workers_(std::max(workers, 1u)) {}

Duration SlowdownModel::Lengthen(WorkerId worker, RoundId round, std::uint32_t unit,
                                 Duration since_start, Duration nominal) const {
  if (specs_.empty()) return nominal;
  auto left = static_cast<double>(nominal.count());  // ns of undisturbed work
  Duration delay{};
  for (const SlowdownSpec& spec : specs_) {
    if (!AppliesTo(spec, worker) || !InWindow(spec, since_start)) continue;
    const Drawn drawn = DrawUnit(spec, worker, round, unit);
    left *= drawn.factor;
    delay += drawn.delay;
  }
  double took = 0;
  Duration t = since_start;
  for (int changes = 0;; ++changes) {
    double factor = 1;
    Duration until = kForGood;
    for (const SlowdownSpec& spec : specs_) {
      if (!AppliesTo(spec, worker)) continue;
      const Phase phase = PhaseAt(spec, workers_, worker, t);
      factor *= phase.factor;
      until = std::min(until, phase.until);
    }
    const double lasts = until == kForGood ? kLongest : static_cast<double>((until - t).count());
    if (changes == kMostChanges || (factor > 0 && left * factor <= lasts)) {
      took += left * std::max(factor, 1.0);
      break;
    }
    took += lasts;
    if (factor > 0) left -= lasts / factor;
    t = until;
  }
  const Duration whole(std::llround(std::min(took, kLongest)));
  return std::max(nominal, whole) + delay;
}

Duration SlowdownModel::Stall(WorkerId worker, RoundId round, std::uint32_t unit,
                              Duration since_start, Duration nominal) const {
  Duration stall{};
  for (const SlowdownSpec& spec : specs_) {
    if (spec.pattern != kSlowWorker && spec.pattern != kDelay) continue;
    if (!AppliesTo(spec, worker) || !InWindow(spec, since_start)) continue;
    const Drawn drawn = DrawUnit(spec, worker, round, unit);
    stall += drawn.delay;
    if (spec.pattern == kDelay) stall += FromSeconds(Seconds(nominal) * (drawn.factor - 1));
  }
  return stall;
}

Duration SlowdownModel::PauseEnd(WorkerId worker, Duration since_start) const {
  Duration t = since_start;
  bool paused = true;
  for (int changes = 0; paused && changes < kMostChanges; ++changes) {
    paused = false;
    for (const SlowdownSpec& spec : specs_) {
      if (spec.pattern != kPause || !AppliesTo(spec, worker)) continue;
      const Phase phase = PhaseAt(spec, workers_, worker, t);
      if (phase.factor > 0) continue;
      t = phase.until;
      paused = true;
    }
  }
  return t;
}

bool SlowdownModel::MayAct(WorkerId worker, Duration since_start) const {
  return std::ranges::any_of(specs_, [&](const SlowdownSpec& spec) {
    return AppliesTo(spec, worker) && InWindow(spec, since_start);
  });
}

}  // namespace lockstep
