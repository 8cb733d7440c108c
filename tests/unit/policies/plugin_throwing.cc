#include <memory>
#include <stdexcept>
#include <string_view>

#include "policies/plugin.h"
#include "policies/work_none.h"

namespace {

using lockstep::policies::ClosingRule;
using lockstep::policies::ClosingVerdict;
using lockstep::policies::RoundView;

// Says what is no text, and throws once the round is its second.
class Throwing final : public ClosingRule {
 public:
  std::string_view name() const override { return "throw\xffing"; }
  ClosingVerdict Judge(const RoundView& view) override {
    if (view.round.value > 0) throw std::runtime_error("a rule of its own\n");
    ClosingVerdict verdict;
    verdict.reason = "no \xff text";
    return verdict;
  }
  bool CanDoWithout(const RoundView& /*view*/) override { return true; }
};

}  // namespace

LOCKSTEP_POLICY_PLUGIN(section, workers) {
  if (section.backup_workers > 1) throw 1;
  lockstep::policies::Policy policy;
  policy.closing = std::make_unique<Throwing>();
  policy.work = lockstep::policies::MakeWorkNone();
  return policy;
}
