#include "policies/runs.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "base/check.h"
#include "policies/outlook.h"

namespace lockstep::policies {
namespace {

// Fractions of a worker's units in a round, the longest first; the first is all of it at once.
constexpr std::array kFractions = {1.0, 1.0 / 2, 1.0 / 4, 1.0 / 8, 1.0 / 16, 1.0 / 32};
// Every worker is late at times by this share of a round, so cheap runs are short.
constexpr double kLeastLate = 0.02;
constexpr double kUnknown = 1.0 / 8;  // where it is not known what a run costs
constexpr double kMemory = 1.0 / 16;  // weight of a round in the running mean of surprises
constexpr double kRecent = 1.0 / 2;   // and in that of a worker's lateness

class GuidedRuns final : public RunRule {
 public:
  std::vector<RunLimit> Runs(std::span<const WorkerView> members,
                             std::span<const std::uint32_t> shares) override {
    LOCKSTEP_CHECK(members.size() == shares.size(), "{} shares of {} members", shares.size(),
                   members.size());
    std::vector<RunLimit> limits;
    const std::optional<double> cost = MedianRunCost(members);
    double rate = 0;  // units a second of all
    std::uint64_t units = 0;
    for (std::size_t i = 0; i < members.size(); ++i) {
      const double unit = UnitSeconds(members[i]);
      rate += unit > 0 ? 1 / unit : 0;
      units += shares[i];
    }
    for (std::size_t i = 0; i < members.size(); ++i) {
      const double unit = UnitSeconds(members[i]);
      // The units that it computes in a round in which nobody waits.
      double quota = shares[i];
      if (unit > 0 && rate > 0) quota = std::min(quota, static_cast<double>(units) / rate / unit);
      limits.push_back(Limit(members[i], quota,
                             static_cast<double>(units) / static_cast<double>(members.size()),
                             cost));
    }
    return limits;
  }

  void OnCommitted(const RoundView& view) override {
    ++rounds_;
    const double cost = MedianRunCost(view.workers).value_or(0);
    // A worker's share as one run, in seconds.
    struct Whole {
      std::size_t worker;
      double seconds;
    };
    std::vector<Whole> wholes;
    double rate = 0;
    std::uint64_t units = 0;
    for (std::size_t i = 0; i < view.workers.size(); ++i) {
      const WorkerView& worker = view.workers[i];
      if (worker.units_planned == 0) continue;
      const bool silent = worker.units_timed == 0 && (worker.fenced || !worker.finished_at);
      State(worker).silent = silent ? State(worker).silent + 1 : 0;
      if (worker.units_timed > 0) {
        State(worker).unit_seconds =
            Seconds(worker.computed) / (worker.units_timed + cost * worker.runs_timed);
      }
      const double unit = UnitSeconds(worker);
      if (unit <= 0) continue;
      wholes.push_back({i, unit * (worker.units_planned + cost)});
      rate += worker.units_planned / wholes.back().seconds;
      units += worker.units_planned;
    }
    if (wholes.size() < 2) return;
    const double ideal = static_cast<double>(units) / rate;
    // A round lasts longer than its units where workers share processors.
    double others = ideal;
    for (const WorkerView& worker : view.workers) {
      if (worker.units_planned == 0 || worker.fenced || !worker.finished_at) continue;
      others = std::max(others, Seconds(*worker.finished_at - view.started));
    }
    double surprise = 0;
    for (const Whole& whole : wholes) {
      const WorkerView& worker = view.workers[whole.worker];
      double late = whole.seconds / ideal - 1;
      // For a worker that was not waited for it is only known that it took longer than the others.
      if (worker.fenced || !worker.finished_at) {
        late = std::max(late, Seconds(view.now - view.started) / others);
      }
      late = std::max(late, 0.0);
      Known& known = State(worker);
      if (known.rounds++ == 0) {
        known.late = late;
      } else {
        surprise = std::max(surprise, late - known.late);
        known.late += (late - known.late) * kRecent;
      }
    }
    surprise_ += (surprise - surprise_) * kMemory;
  }

 private:
  // Of a worker, by slot.
  struct Known {
    MemberId member;
    double unit_seconds = 0;  // of a unit without its part of the run's cost; 0: not known
    double late = 0;
    std::uint32_t rounds = 0;
    std::uint32_t silent = 0;  // so many rounds have closed without anything of it, to the last one
  };

  Known& State(const WorkerView& worker) {
    const std::uint32_t slot = worker.member.worker.value;
    if (known_.size() <= slot) known_.resize(slot + 1);
    if (known_[slot].member != worker.member) known_[slot] = {.member = worker.member};
    return known_[slot];
  }

  double UnitSeconds(const WorkerView& worker) {
    const double seconds = State(worker).unit_seconds;
    return seconds > 0 ? seconds : Seconds(worker.unit_time_mean);
  }

  // Counts guided runs of at most `most` units: full ones until two are left, then halves.
  static double CountRuns(double units, double most) {
    return std::max(units / most - 2, 0.0) + std::log2(std::min(2 * most, units)) + 1;
  }

  // Short ones where it is not known what a run costs, but of two lengths, so that it will be.
  // `quota`: units that it computes in a round in which nobody waits; `usual`: the mean of all
  // workers. A slow worker's cost of runs matters little, since others do most of the work.
  RunLimit Limit(const WorkerView& worker, double quota, double usual,
                 const std::optional<double>& cost) {
    // Nothing is known of it: it gets one unit, so that something will be.
    if (rounds_ == 0) return {1, true};
    // Nothing has come of it: its runs are so short that something will, at first half cost and
    // half work. Single units, each with a run's cost, would keep somebody late who was it once.
    if (const std::uint32_t silent = State(worker).silent; silent > 0) {
      const double most = cost.value_or(0) / std::exp2(std::min(silent - 1, 32u));
      return {static_cast<std::uint32_t>(std::max(1.0, std::round(most))), true};
    }
    if (!cost) {
      const double most = std::max(2.0, std::round(kUnknown * quota));
      return {static_cast<std::uint32_t>(most), true};
    }
    const double late = std::max(State(worker).late + surprise_, kLeastLate);
    const double bound = worker.most_in_run > 0 ? worker.most_in_run : quota;
    RunLimit best;
    double least = 0;
    for (const double fraction : kFractions) {
      const double most = std::max(1.0, std::min(std::round(fraction * quota), bound));
      const bool whole = fraction == 1;
      if (quota >= 1) {
        // A whole run is as much at a time as the worker can compute, which need not be all.
        const double runs =
            whole ? std::ceil(quota / std::min(quota, bound)) : CountRuns(quota, most);
        const double part = std::min(fraction, bound / quota);
        const double price = late * part + *cost * (runs - 1) / std::max(quota, usual);
        if (!whole && price >= least) continue;
        least = price;
      }
      best = whole ? RunLimit{} : RunLimit{static_cast<std::uint32_t>(most), true};
    }
    return best;
  }

  std::vector<Known> known_;
  double surprise_ = 0;
  std::uint64_t rounds_ = 0;
};

}  // namespace

std::unique_ptr<RunRule> MakeGuidedRuns() { return std::make_unique<GuidedRuns>(); }

}  // namespace lockstep::policies
