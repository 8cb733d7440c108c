#include "policies/deadline.h"

#include <fmt/format.h>

#include <optional>

#include "policies/waiting.h"

namespace lockstep::policies {
namespace {

class Deadline final : public ArrivalRule {
 public:
  explicit Deadline(const ArrivalOptions& options) : ArrivalRule(options, /*full_work=*/false) {}

  std::string_view name() const override { return "deadline"; }

  ClosingVerdict Judge(const RoundView& view) override {
    ClosingVerdict verdict;
    if (view.with_units > 0 && view.finished == view.with_units) {
      verdict.close = true;
      verdict.parts = AllDelivered(view);
      verdict.reason = fmt::format("all {} workers with units finished", view.with_units);
      return verdict;
    }
    if (deadline() && !view.exact && view.with_units > 0) {
      const Time until = view.started + *deadline();
      if (view.now >= until && view.finished >= least()) {
        verdict.close = true;
        verdict.parts = AllDelivered(view);
        verdict.reason = fmt::format("the deadline of {:.1f} ms passed with {} of {} workers",
                                     Seconds(*deadline()) * 1e3, view.finished, view.with_units);
        return verdict;
      }
      if (view.now < until) verdict.look_again = until;
    }
    if (view.explain) verdict.reason = WaitingFor(view);
    return verdict;
  }
};

}  // namespace

std::unique_ptr<ClosingRule> MakeDeadline(const ArrivalOptions& options) {
  return std::make_unique<Deadline>(options);
}

}  // namespace lockstep::policies
