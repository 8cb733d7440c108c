#include "policies/lasting.h"

#include <algorithm>
#include <cstddef>

#include "policies/outlook.h"
#include "policies/work_none.h"

namespace lockstep::policies {
namespace {

constexpr double kDifferent = 1.25;    // times the median unit time
constexpr std::uint32_t kLasting = 8;  // rounds in a row

class LastingShares final : public WorkRule {
 public:
  explicit LastingShares(const BalanceOptions& options)
      : equal_(MakeWorkNone()), balance_(MakeBalance(options)) {}

  std::string_view name() const override { return "lasting"; }
  std::vector<std::uint32_t> Share(std::span<const WorkerView> members,
                                   std::uint32_t units) override {
    difference_.OnPlanned(members);
    return (difference_.uneven() ? balance_ : equal_)->Share(members, units);
  }
  WorkVerdict Judge(const RoundView&) override { return {}; }
  void OnCommitted(const RoundView& view) override { difference_.OnCommitted(view); }

 private:
  LastingDifference difference_;
  const std::unique_ptr<WorkRule> equal_;
  const std::unique_ptr<WorkRule> balance_;
};

}  // namespace

void LastingDifference::OnPlanned(std::span<const WorkerView> members) {
  std::vector<bool> there(rounds_different_.size(), false);
  for (const WorkerView& member : members) {
    if (member.member.worker.value < there.size()) there[member.member.worker.value] = true;
  }
  for (std::size_t slot = 0; slot < rounds_different_.size(); ++slot) {
    if (!there[slot]) rounds_different_[slot] = 0;
  }
}

void LastingDifference::OnCommitted(const RoundView& view) {
  std::vector<Duration> means;
  for (const WorkerView& worker : view.workers) {
    if (worker.unit_time_mean > Duration{}) means.push_back(worker.unit_time_mean);
  }
  if (means.size() < 2) return;
  const auto middle = means.begin() + static_cast<std::ptrdiff_t>((means.size() - 1) / 2);
  std::nth_element(means.begin(), middle, means.end());
  const double median = Seconds(*middle);
  for (const WorkerView& worker : view.workers) {
    const std::uint32_t slot = worker.member.worker.value;
    if (rounds_different_.size() <= slot) rounds_different_.resize(slot + 1, 0);
    const double mean = Seconds(worker.unit_time_mean);
    // Wide spread is a worker that is slow at times, not for good. But it says nothing new while
    // the round goes on without it, and that again and again is a lasting difference.
    const bool spread = Seconds(worker.unit_time_deviation) >= mean / 2;
    const bool left_out = worker.level && worker.units_given > 0 && !Computed(worker);
    const bool slower = mean > median * kDifferent && (!spread || left_out);
    const bool faster = mean > 0 && mean < median / kDifferent && !spread;
    const bool different = slower || faster;
    rounds_different_[slot] = different ? rounds_different_[slot] + 1 : 0;
  }
  // Once on, it stays while a worker is different. A worker that had no units keeps its count.
  const std::uint32_t most =
      rounds_different_.empty() ? 0 : *std::ranges::max_element(rounds_different_);
  uneven_ = most >= kLasting || (uneven_ && most > 0);
}

std::unique_ptr<WorkRule> MakeLastingShares(const BalanceOptions& options) {
  return std::make_unique<LastingShares>(options);
}

}  // namespace lockstep::policies
