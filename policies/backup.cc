#include "policies/backup.h"

#include <fmt/format.h>

#include <algorithm>

#include "policies/waiting.h"

namespace lockstep::policies {
namespace {

class Backup final : public ClosingRule {
 public:
  explicit Backup(std::uint32_t backup_workers) : backup_workers_(backup_workers) {}

  std::string_view name() const override { return "backup"; }
  std::uint32_t Spare() const override { return backup_workers_; }

  ClosingVerdict Judge(const RoundView& view) override {
    ClosingVerdict verdict;
    const std::uint32_t need =
        view.exact ? view.with_units : std::min(view.with_units, Enough(view));
    if (need > 0 && view.finished >= need) {
      verdict.close = true;
      verdict.parts = AllDelivered(view);
      verdict.reason =
          view.exact ? fmt::format("all {} workers with units finished the epoch", view.with_units)
                     : fmt::format("the first {} of {} workers", view.finished, view.with_units);
    } else if (view.explain) {
      verdict.reason = WaitingFor(view);
    }
    return verdict;
  }

  bool CanDoWithout(const RoundView& view) override {
    return !view.exact && view.with_units >= std::min(view.planned_workers, Enough(view));
  }

 private:
  std::uint32_t Enough(const RoundView& view) const {
    if (view.configured_workers <= backup_workers_) return 1;
    return view.configured_workers - backup_workers_;
  }

  const std::uint32_t backup_workers_;
};

}  // namespace

std::unique_ptr<ClosingRule> MakeBackup(std::uint32_t backup_workers) {
  return std::make_unique<Backup>(backup_workers);
}

}  // namespace lockstep::policies
