#include "policies/full.h"

#include <fmt/format.h>

#include "policies/waiting.h"

namespace lockstep::policies {
namespace {

class Full final : public ClosingRule {
 public:
  std::string_view name() const override { return "full"; }

  ClosingVerdict Judge(const RoundView& view) override {
    ClosingVerdict verdict;
    if (view.with_units > 0 && view.finished == view.with_units) {
      verdict.close = true;
      verdict.parts = AllDelivered(view);
      verdict.reason = fmt::format("all {} workers with units finished", view.with_units);
    } else if (view.explain) {
      verdict.reason = WaitingFor(view);
    }
    return verdict;
  }

  bool CanDoWithout(const RoundView&) override { return false; }
};

}  // namespace

std::unique_ptr<ClosingRule> MakeFull() { return std::make_unique<Full>(); }

}  // namespace lockstep::policies
