// A straggler policy of one's own, as a shared library outside of Lockstep's tree:
//
//   cmake -S examples -B build -DCMAKE_PREFIX_PATH=<where lockstep is installed>
//   cmake --build build --target policy_plugin
//   lockstep-launch -n 4 --config job.ini --set policy.name=plugin --set
//   policy.plugin=build/policy_plugin.so
//
// This one closes a round when nine tenths of its samples are delivered, whoever computed them, or
// when no more can come.
#include <string>
#include <vector>

#include "policies/plugin.h"
#include "policies/waiting.h"
#include "policies/work_none.h"

namespace {

using lockstep::policies::ClosingRule;
using lockstep::policies::ClosingVerdict;
using lockstep::policies::PartView;
using lockstep::policies::RoundView;
using lockstep::policies::WorkerView;

class MostSamples final : public ClosingRule {
 public:
  std::string_view name() const override { return "most-samples"; }

  ClosingVerdict Judge(const RoundView& view) override {
    ClosingVerdict verdict;
    const std::uint64_t delivered = Delivered(view);
    // Of the last round of an epoch all that can come is waited for. Of any other one so much may
    // be left out or skipped that nine tenths never come: then too.
    const bool all = view.finished == view.with_units && view.pending_revokes == 0;
    const bool enough = view.exact ? delivered == view.samples_wanted
                                   : all || delivered * 10 >= view.samples_planned * 9;
    if (delivered > 0 && enough) {
      verdict.close = true;
      verdict.parts = lockstep::policies::AllDelivered(view);
      verdict.reason = std::to_string(delivered) + " of " + std::to_string(view.samples_planned) +
                       " samples are there";
    } else if (view.explain) {
      verdict.reason = lockstep::policies::WaitingFor(view);
    }
    return verdict;
  }

  // Of workers that are lost: is what the others have to do enough?
  bool CanDoWithout(const RoundView& view) override {
    std::uint64_t given = 0;
    for (const WorkerView& worker : view.workers) given += worker.samples_given;
    return !view.exact && given * 10 >= view.samples_planned * 9;
  }

 private:
  static std::uint64_t Delivered(const RoundView& view) {
    std::uint64_t samples = 0;
    for (const WorkerView& worker : view.workers) {
      for (const PartView& part : worker.parts) {
        if (part.delivered_at && !worker.fenced) samples += part.samples;
      }
    }
    return samples;
  }
};

}  // namespace

LOCKSTEP_POLICY_PLUGIN(section, workers) {
  lockstep::policies::Policy policy;
  policy.closing = std::make_unique<MostSamples>();
  policy.work = lockstep::policies::MakeWorkNone();
  return policy;
}
