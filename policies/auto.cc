#include "policies/auto.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "policies/full.h"
#include "policies/outlook.h"
#include "policies/waiting.h"
#include "policies/work_none.h"

namespace lockstep::policies {
namespace {

constexpr double kApart = 1.25;             // times the median unit time
constexpr std::uint32_t kLasting = 8;       // rounds in a row
constexpr double kMemory = 1.0 / 32;        // weight of a round in the running shares
constexpr double kOften = 0.05;             // of the rounds, to be worth a word
constexpr std::uint32_t kLeastToLeave = 4;  // one of so many workers may be left out

// What the two rules of the policy share.
struct Mind {
  // How many rounds in a row the worker's mean unit time was apart, by slot.
  std::vector<std::uint32_t> apart;
  bool uneven = false;
  double rounds_with_moves = 0;  // running shares of the rounds
  double rounds_with_stuck = 0;
  bool moved = false;  // in this round
  bool stuck = false;
  RoundId leave_out_round{~0ull};  // a round that closes without who is not finished
  std::string leave_out_reason;

  std::string Choice() const {
    std::string choice = uneven ? "balance" : "equal shares";
    if (rounds_with_moves > kOften) choice += "+flexrr";
    if (rounds_with_stuck > kOften) choice += "+backup";
    std::string why = uneven ? "workers differ for good" : "no lasting difference";
    if (rounds_with_moves > kOften) {
      why += fmt::format(", passing ones in {:.0f} % of the rounds", rounds_with_moves * 100);
    }
    if (rounds_with_stuck > kOften) {
      why += fmt::format(", stuck workers in {:.0f} %", rounds_with_stuck * 100);
    }
    return fmt::format("auto: {} ({})", choice, why);
  }
};

class AutoWork final : public WorkRule {
 public:
  AutoWork(const FlexrrOptions& flexrr, const BalanceOptions& balance, std::shared_ptr<Mind> mind)
      : mind_(std::move(mind)),
        equal_(MakeWorkNone()),
        balance_(MakeBalance(balance)),
        flexrr_(MakeFlexrr(flexrr, MakeWorkNone())) {}

  std::string_view name() const override { return "auto"; }

  std::vector<std::uint32_t> Share(std::span<const WorkerView> members,
                                   std::uint32_t units) override {
    return (mind_->uneven ? balance_ : equal_)->Share(members, units);
  }

  WorkVerdict Judge(const RoundView& view) override {
    WorkVerdict verdict = flexrr_->Judge(view);
    mind_->moved = mind_->moved || !verdict.moves.empty();
    if (verdict.fence.empty()) return verdict;
    mind_->stuck = true;
    if (!BetterLeftOut(view, verdict.fence)) return verdict;
    mind_->leave_out_round = view.round;
    mind_->leave_out_reason = std::exchange(verdict.reason, {});
    verdict.fence.clear();
    return verdict;
  }

  void OnCommitted(const RoundView& view) override {
    mind_->rounds_with_moves += ((mind_->moved ? 1 : 0) - mind_->rounds_with_moves) * kMemory;
    mind_->rounds_with_stuck += ((mind_->stuck ? 1 : 0) - mind_->rounds_with_stuck) * kMemory;
    mind_->moved = mind_->stuck = false;
    flexrr_->OnCommitted(view);
    NoteSpeeds(view);
  }

 private:
  // Computing them again takes longer than the round's time that their samples stand for.
  static bool BetterLeftOut(const RoundView& view, const std::vector<WorkerId>& stuck) {
    if (view.exact || stuck.size() > view.with_units / kLeastToLeave) return false;
    std::uint32_t held = 0;
    std::uint32_t all = 0;
    std::uint32_t free = 0;
    for (const WorkerView& worker : view.workers) {
      const bool is_stuck =
          std::find(stuck.begin(), stuck.end(), worker.member.worker) != stuck.end();
      all += worker.units_given;
      held += is_stuck ? worker.units_given : 0;
      free += worker.takes_units && !is_stuck ? 1 : 0;
      if (!is_stuck && !worker.finished_at && worker.units_given > 0 && !worker.fenced)
        return false;
    }
    if (free == 0) return true;
    const std::uint32_t each = (held + free - 1) / free;
    const double again = Seconds(MedianUnitTime(view)) * each;
    return again > Seconds(view.now - view.started) * held / std::max(all, 1u);
  }

  void NoteSpeeds(const RoundView& view) {
    std::vector<Duration> means;
    for (const WorkerView& worker : view.workers) {
      if (worker.unit_time_mean > Duration{}) means.push_back(worker.unit_time_mean);
    }
    if (means.size() < 2) return;
    const auto middle = means.begin() + static_cast<std::ptrdiff_t>((means.size() - 1) / 2);
    std::nth_element(means.begin(), middle, means.end());
    const double median = Seconds(*middle);
    bool lasting = false;
    bool any = false;
    for (const WorkerView& worker : view.workers) {
      const std::uint32_t slot = worker.member.worker.value;
      if (mind_->apart.size() <= slot) mind_->apart.resize(slot + 1, 0);
      const double mean = Seconds(worker.unit_time_mean);
      // Wide spread is a worker that is slow at times, not for good.
      const bool apart = mean > 0 && Seconds(worker.unit_time_deviation) < mean / 2 &&
                         (mean > median * kApart || mean < median / kApart);
      mind_->apart[slot] = apart ? mind_->apart[slot] + 1 : 0;
      lasting = lasting || mind_->apart[slot] >= kLasting;
      any = any || apart;
    }
    // Once on, it stays until nobody is apart.
    mind_->uneven = lasting || (mind_->uneven && any);
  }

  const std::shared_ptr<Mind> mind_;
  const std::unique_ptr<WorkRule> equal_;
  const std::unique_ptr<WorkRule> balance_;
  const std::unique_ptr<WorkRule> flexrr_;
};

class AutoClosing final : public ClosingRule {
 public:
  explicit AutoClosing(std::shared_ptr<Mind> mind) : mind_(std::move(mind)), full_(MakeFull()) {}

  std::string_view name() const override { return "auto"; }
  std::uint32_t Spare() const override { return 0; }

  ClosingVerdict Judge(const RoundView& view) override {
    ClosingVerdict verdict = full_->Judge(view);
    if (!verdict.close && mind_->leave_out_round == view.round && !view.exact &&
        view.finished > 0) {
      verdict.close = true;
      verdict.parts = AllDelivered(view);
      verdict.reason = "without it: " + mind_->leave_out_reason;
    }
    if (verdict.close || view.explain) {
      verdict.reason = fmt::format("{}; {}", verdict.reason, mind_->Choice());
    }
    return verdict;
  }

  bool CanDoWithout(const RoundView&) override { return false; }

 private:
  const std::shared_ptr<Mind> mind_;
  const std::unique_ptr<ClosingRule> full_;
};

}  // namespace

Policy MakeAuto(const FlexrrOptions& flexrr, const BalanceOptions& balance) {
  auto mind = std::make_shared<Mind>();
  Policy policy;
  policy.name = "auto";
  policy.closing = std::make_unique<AutoClosing>(mind);
  policy.work = std::make_unique<AutoWork>(flexrr, balance, mind);
  return policy;
}

}  // namespace lockstep::policies
