#include "policies/auto.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <memory>
#include <utility>
#include <vector>

#include "policies/forecast.h"
#include "policies/full.h"
#include "policies/lasting.h"
#include "policies/outlook.h"
#include "policies/runs.h"
#include "policies/waiting.h"
#include "policies/work_none.h"

namespace lockstep::policies {
namespace {

constexpr double kMemory = 1.0 / 32;        // weight of a round in the running shares
constexpr double kOften = 0.05;             // of the rounds, to be worth a word
constexpr std::uint32_t kEnoughRounds = 4;  // to know what time is worth
constexpr double kMostLeftOut = 0.5;        // of a round's samples
constexpr double kMargin = 0.02;            // estimates of times are no more exact
// Weighing costs passes over the workers, so with more of them it is done less often: when the
// round is by (workers, at most kManyWorkers) / kLooks older.
constexpr std::int64_t kLooks = 4096;
constexpr std::int64_t kManyWorkers = 128;

// The state that the two rules of the policy share.
struct AutoState {
  bool uneven = false;
  bool balanced = false;         // the shares of the round
  double rounds_with_moves = 0;  // running shares of the rounds
  double rounds_without = 0;     // that closed without somebody
  bool moved = false;            // in this round
  // Samples a second that the job makes: running means of a round's samples and its length.
  std::uint32_t rounds = 0;
  double samples = 0;
  double seconds = 0;
  double samples_per_unit = 0;
  // The round that `left_out` speaks of: by slot, who it is going to close without.
  RoundId round{~0ull};
  Time started;
  std::vector<bool> left_out;
  std::uint32_t count = 0;  // of them
  double lost = 0;          // samples, and what waiting for them would have taken
  Duration spared{};

  double Rate() const { return rounds >= kEnoughRounds && seconds > 0 ? samples / seconds : 0; }
  bool LeavesOut(const RoundView& view) const {
    return count > 0 && round == view.round && started == view.started && !view.exact;
  }

  std::string Choice() const {
    std::string choice = balanced ? "balance" : "equal shares";
    if (rounds_with_moves > kOften) choice += "+flexrr";
    if (rounds_without > kOften) choice += "+backup";
    std::string why = uneven ? "workers differ for good" : "no lasting difference";
    if (rounds_with_moves > kOften) {
      why += fmt::format(", passing ones in {:.0f} % of the rounds", rounds_with_moves * 100);
    }
    if (rounds_without > kOften) {
      why += fmt::format(", {:.0f} % closed early", rounds_without * 100);
    }
    return fmt::format("auto: {} ({})", choice, why);
  }
};

// Decides at each look whom the round does without.
class AutoExclusion final : public ExclusionRule {
 public:
  explicit AutoExclusion(std::shared_ptr<AutoState> state) : state_(std::move(state)) {}

  bool IsDue(const RoundView& view) override {
    return state_->round != view.round || state_->started != view.started || view.now >= next_;
  }

  void Decide(const RoundView& view, const std::vector<WorkerEstimate>& estimates,
              Duration delivery) override {
    next_ = view.now + (view.now - view.started) *
                           std::min<std::int64_t>(std::ssize(estimates), kManyWorkers) / kLooks;
    state_->round = view.round;
    state_->started = view.started;
    state_->count = 0;
    state_->left_out.assign(state_->left_out.size(), false);
    const double rate = view.exact ? 0 : state_->Rate();
    if (rate <= 0) return;
    ForecastWorkers(view, estimates, delivery, &worker_forecasts_);
    const std::vector<bool>& out =
        forecast_.LeftOut(worker_forecasts_, view.now, rate,
                          static_cast<double>(view.samples_planned) * kMostLeftOut);
    for (std::size_t i = 0; i < out.size(); ++i) {
      if (!out[i]) continue;
      const std::uint32_t slot = view.workers[i].member.worker.value;
      if (state_->left_out.size() <= slot) state_->left_out.resize(slot + 1, false);
      state_->left_out[slot] = true;
      ++state_->count;
    }
    state_->lost = forecast_.lost();
    state_->spared = forecast_.whole() - forecast_.end();
  }

  bool IsOut(WorkerId worker) const override {
    return worker.value < state_->left_out.size() && state_->left_out[worker.value];
  }
  bool AnyOut() const override { return state_->count > 0; }

 private:
  const std::shared_ptr<AutoState> state_;
  Forecast forecast_;
  Time next_;
  std::vector<WorkerForecast> worker_forecasts_;
};

class AutoWork final : public WorkRule {
 public:
  AutoWork(const FlexrrOptions& flexrr, const BalanceOptions& balance,
           std::shared_ptr<AutoState> state)
      : state_(std::move(state)),
        exclusion_(state_),
        equal_(MakeWorkNone()),
        balance_(MakeBalance(balance)),
        flexrr_(MakeFlexrr(flexrr, MakeWorkNone(), &exclusion_)) {}

  std::string_view name() const override { return "auto"; }

  std::vector<std::uint32_t> Share(std::span<const WorkerView> members,
                                   std::uint32_t units) override {
    lasting_.OnPlanned(members);
    std::vector<std::uint32_t> equal = equal_->Share(members, units);
    state_->balanced = false;
    if (!state_->uneven) return equal;
    std::vector<std::uint32_t> by_speed = balance_->Share(members, units);
    state_->balanced = !BetterWithoutSlow(members, equal, by_speed);
    return state_->balanced ? by_speed : equal;
  }

  WorkVerdict Judge(const RoundView& view) override {
    WorkVerdict verdict = flexrr_->Judge(view);
    state_->moved = state_->moved || !verdict.moves.empty();
    return verdict;
  }

  void OnCommitted(const RoundView& view) override {
    const bool without = view.finished < view.with_units;
    state_->rounds_with_moves += ((state_->moved ? 1 : 0) - state_->rounds_with_moves) * kMemory;
    state_->rounds_without += ((without ? 1 : 0) - state_->rounds_without) * kMemory;
    state_->moved = false;
    flexrr_->OnCommitted(view);
    if (!view.exact) NoteRate(view);
    lasting_.OnCommitted(view);
    state_->uneven = lasting_.uneven();
  }

 private:
  // With few units for each worker, a slow worker may be worth less than one more unit for the
  // others. Then all have equal shares, and the round closes without it.
  bool BetterWithoutSlow(std::span<const WorkerView> members,
                         const std::vector<std::uint32_t>& equal,
                         const std::vector<std::uint32_t>& by_speed) {
    const double cost = MedianRunCost(members).value_or(0);
    const Time start{};
    std::vector<WorkerForecast> worker_forecasts;
    std::vector<Duration> unit_times;
    double samples = 0;
    for (std::size_t i = 0; i < members.size(); ++i) {
      const Duration unit_time = members[i].unit_time_mean;
      if (unit_time == Duration{} || equal[i] == 0) return false;
      unit_times.push_back(unit_time);
      const Time end = start + LongestShare({&unit_times.back(), 1}, cost, {&equal[i], 1});
      worker_forecasts.push_back(
          {end, end, unit_time, 0, false, equal[i] * state_->samples_per_unit});
      samples += worker_forecasts.back().samples;
    }
    const std::vector<bool>& out =
        forecast_.LeftOut(worker_forecasts, start, state_->Rate(), samples * kMostLeftOut);
    if (std::find(out.begin(), out.end(), true) == out.end()) return false;
    const Duration saved = start + LongestShare(unit_times, cost, by_speed) - forecast_.end();
    return state_->Rate() * Seconds(saved) * (1 - kMargin) > forecast_.lost();
  }

  void NoteRate(const RoundView& view) {
    double samples = 0;
    std::uint32_t units = 0;
    for (const WorkerView& worker : view.workers) {
      units += worker.units_planned;
      if (worker.fenced) continue;
      for (const PartView& part : worker.parts) {
        samples += part.delivered_at ? static_cast<double>(part.samples) : 0;
      }
    }
    if (units > 0) state_->samples_per_unit = static_cast<double>(view.samples_planned) / units;
    const double weight = std::max(kMemory, 1.0 / ++state_->rounds);
    state_->samples += (samples - state_->samples) * weight;
    state_->seconds += (Seconds(view.now - view.started) - state_->seconds) * weight;
  }

  const std::shared_ptr<AutoState> state_;
  AutoExclusion exclusion_;
  Forecast forecast_;
  LastingDifference lasting_;
  const std::unique_ptr<WorkRule> equal_;
  const std::unique_ptr<WorkRule> balance_;
  const std::unique_ptr<WorkRule> flexrr_;
};

class AutoClosing final : public ClosingRule {
 public:
  explicit AutoClosing(std::shared_ptr<AutoState> state)
      : state_(std::move(state)), full_(MakeFull()) {}

  std::string_view name() const override { return "auto"; }
  std::uint32_t Spare() const override { return 0; }

  ClosingVerdict Judge(const RoundView& view) override {
    ClosingVerdict verdict = full_->Judge(view);
    if (!verdict.close && state_->LeavesOut(view) && view.finished > 0 && OthersFinished(view)) {
      verdict.close = true;
      verdict.parts = AllDelivered(view);
      verdict.reason = fmt::format(
          "the first {} of {} workers: {:.0f} more samples would have taken {:.0f} ms, and the job "
          "makes {:.0f} in that time",
          view.finished, view.with_units, state_->lost, Seconds(state_->spared) * 1e3,
          Seconds(state_->spared) * state_->Rate());
    }
    if (verdict.close || view.explain) {
      verdict.reason = fmt::format("{}; {}", verdict.reason, state_->Choice());
    }
    return verdict;
  }

  bool CanDoWithout(const RoundView&) override { return false; }

 private:
  bool OthersFinished(const RoundView& view) const {
    if (view.finished + state_->count < view.with_units) return false;
    return std::all_of(view.workers.begin(), view.workers.end(), [&](const WorkerView& worker) {
      const std::uint32_t slot = worker.member.worker.value;
      return worker.fenced || worker.units_given == 0 || worker.finished_at ||
             (slot < state_->left_out.size() && state_->left_out[slot]);
    });
  }

  const std::shared_ptr<AutoState> state_;
  const std::unique_ptr<ClosingRule> full_;
};

}  // namespace

Policy MakeAuto(const FlexrrOptions& flexrr, const BalanceOptions& balance) {
  auto state = std::make_shared<AutoState>();
  Policy policy;
  policy.name = "auto";
  policy.closing = std::make_unique<AutoClosing>(state);
  policy.work = std::make_unique<AutoWork>(flexrr, balance, state);
  policy.runs = MakeGuidedRuns();
  return policy;
}

}  // namespace lockstep::policies
