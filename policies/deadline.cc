#include "policies/deadline.h"

#include <fmt/format.h>

#include <algorithm>

#include "policies/arrivals.h"
#include "policies/waiting.h"

namespace lockstep::policies {
namespace {

class Deadline final : public ClosingRule {
 public:
  explicit Deadline(const DeadlineOptions& options)
      : options_(options), arrivals_(options.window) {}

  std::string_view name() const override { return "deadline"; }

  ClosingVerdict Judge(const RoundView& view) override {
    ClosingVerdict verdict;
    if (view.with_units > 0 && view.finished == view.with_units) {
      verdict.close = true;
      verdict.parts = AllDelivered(view);
      verdict.reason = fmt::format("all {} workers with units finished", view.with_units);
      return verdict;
    }
    const std::uint32_t least = std::min(options_.min_contributors, view.with_units);
    if (deadline_ && !view.exact && view.with_units > 0) {
      const Time until = view.started + *deadline_;
      if (view.now >= until && view.finished >= std::max(least, 1u)) {
        verdict.close = true;
        verdict.parts = AllDelivered(view);
        verdict.reason = fmt::format("the deadline of {:.1f} ms passed with {} of {} workers",
                                     Seconds(*deadline_) * 1e3, view.finished, view.with_units);
        return verdict;
      }
      if (view.now < until) verdict.look_again = until;
    }
    if (view.explain) verdict.reason = WaitingFor(view);
    return verdict;
  }

  std::uint32_t Spare() const override {
    return options_.workers - std::min(options_.workers, options_.min_contributors);
  }

  bool CanDoWithout(const RoundView& view) override {
    return !view.exact && view.with_units >= std::max(options_.min_contributors, 1u);
  }

  void OnCommitted(const RoundView& view) override {
    if (!view.exact) arrivals_.Add(view, false);
    deadline_ = arrivals_.Deadline(options_.k);
  }

 private:
  const DeadlineOptions options_;
  Arrivals arrivals_;
  std::optional<Duration> deadline_;
};

}  // namespace

std::unique_ptr<ClosingRule> MakeDeadline(const DeadlineOptions& options) {
  return std::make_unique<Deadline>(options);
}

}  // namespace lockstep::policies
