// Work rule `flexrr`: work moves from who lags to who is ahead, within the round, so that nobody
// waits and nothing is dropped. After Harlap et al., "Addressing the straggler problem for
// iterative convergent parallel ML", SoCC'16, section 4 (RapidReassignment).
//
// There, workers report progress to each other in helper groups. When a report is more than 20 % of
// a round ahead, the helpee answers with a small assignment; further ones double. Here the
// coordinator has everybody's reports, and a hand-over is revoke, acknowledge, assign, so that each
// unit is in one pair of hands at any time.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "policies/policy.h"
#include "policies/standings.h"

namespace lockstep::policies {

struct FlexrrOptions {
  double trigger = 0.2;  // how far behind a helper, as a share of a round
  double first = 0.025;  // first hand-over, as a share of a worker's units; at least one unit
  std::uint32_t group_size = 0;  // workers that help each other; 0: all
};

// Knows that a round will do without some of its workers: they give nothing to others and are not
// fenced.
class ExclusionRule {
 public:
  virtual ~ExclusionRule() = default;
  // It wants to decide anew at this look, which costs a pass.
  virtual bool IsDue(const RoundView& view) = 0;
  // `delivery`: what a part usually takes from its sealing to all owners.
  virtual void Decide(const RoundView& view, const std::vector<WorkerEstimate>& estimates,
                      Duration delivery) = 0;
  // By its last decision.
  virtual bool IsOut(WorkerId worker) const = 0;
  virtual bool AnyOut() const = 0;
};

// Shares are those of `shares`, a work rule that moves nothing (equal ones: MakeWorkNone()).
// `exclusion`, if there is one, has to stay.
std::unique_ptr<WorkRule> MakeFlexrr(const FlexrrOptions& options, std::unique_ptr<WorkRule> shares,
                                     ExclusionRule* exclusion = nullptr);

}  // namespace lockstep::policies
