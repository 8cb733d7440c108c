#include "policies/backup_auto.h"

#include <fmt/format.h>

#include <algorithm>

#include "policies/arrivals.h"
#include "policies/waiting.h"

namespace lockstep::policies {
namespace {

constexpr std::size_t kWindow = 32;  // rounds
constexpr std::size_t kEnough = 8;
constexpr double kHysteresis = 0.02;

// Contributions per second of waiting for n - b.
double Rate(const std::vector<std::vector<Duration>>& rounds, std::uint32_t b) {
  double arrivals = 0;
  double seconds = 0;
  for (const std::vector<Duration>& round : rounds) {
    if (round.size() <= b) continue;
    const std::size_t k = round.size() - b;
    arrivals += static_cast<double>(k);
    seconds += Seconds(round[k - 1]);
  }
  return seconds > 0 ? arrivals / seconds : 0;
}

class BackupAuto final : public ClosingRule {
 public:
  std::string_view name() const override { return "backup"; }
  std::uint32_t Spare() const override { return 1; }

  ClosingVerdict Judge(const RoundView& view) override {
    ClosingVerdict verdict;
    const std::uint32_t need =
        view.exact ? view.with_units : std::min(view.with_units, Enough(view));
    if (need > 0 && view.finished >= need) {
      verdict.close = true;
      verdict.parts = AllDelivered(view);
      verdict.reason =
          view.exact
              ? fmt::format("all {} workers with units finished the epoch", need)
              : fmt::format("the first {} of {} workers, {}", view.finished, view.with_units, why_);
    } else if (view.explain) {
      verdict.reason = fmt::format("{}; {}", WaitingFor(view), why_);
    }
    return verdict;
  }

  bool CanDoWithout(const RoundView& view) override {
    return !view.exact && view.with_units >= Enough(view);
  }

  void OnCommitted(const RoundView& view) override {
    if (view.exact) return;
    arrivals_.Add(view, false);
    // Only rounds of as many workers count: a worker that is gone, or has come, may be the slow
    // one.
    std::vector<std::vector<Duration>> alike = arrivals_.rounds();
    const auto workers = static_cast<std::size_t>(std::ranges::count_if(
        view.workers, [](const WorkerView& worker) { return worker.units_planned > 0; }));
    std::erase_if(alike, [&](const auto& round) { return round.size() != workers; });
    if (alike.size() < kEnough) return;
    const std::uint32_t best = BestBackups(alike, backups_);
    if (best == backups_) return;
    const double without = Rate(alike, 0);
    why_ = without > 0
               ? fmt::format("auto: b = {}, contributions come {:.2f} times as fast as with 0",
                             best, Rate(alike, best) / without)
               : fmt::format("auto: b = {}", best);
    backups_ = best;
  }

 private:
  // b was chosen over the arrivals of workers with units. A job that has lost some leaves out as
  // many of the rest, but never more than half.
  std::uint32_t Enough(const RoundView& view) const {
    return std::max(1u, view.planned_workers - std::min(backups_, view.planned_workers / 2));
  }

  Arrivals arrivals_{kWindow};
  std::uint32_t backups_ = 0;
  std::string why_ = "auto: b = 0 until arrivals say more";
};

}  // namespace

std::uint32_t BestBackups(const std::vector<std::vector<Duration>>& rounds, std::uint32_t current) {
  std::size_t workers = 0;
  for (const auto& round : rounds) workers = std::max(workers, round.size());
  std::uint32_t best = current;
  double best_rate = Rate(rounds, current) * (1 + kHysteresis);
  for (std::uint32_t b = 0; b <= workers / 2; ++b) {
    if (b == current) continue;
    if (const double rate = Rate(rounds, b); rate > best_rate) {
      best = b;
      best_rate = rate;
    }
  }
  return best;
}

std::unique_ptr<ClosingRule> MakeBackupAuto() { return std::make_unique<BackupAuto>(); }

}  // namespace lockstep::policies
