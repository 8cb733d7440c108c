// The costs of an epoch's samples. The coordinator is told (msg::Costs) by the member with the
// lowest id for all workers, since all programs say the same. This worker's own runs are bounded by
// it.
//
// In: what the program says, plans. Out: pieces, one with each plan, so that they never hold up
// what a round waits for.
#pragma once

#include <cstddef>
#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "worker/core/context.h"

namespace lockstep::worker {

// `costs`: by position; none below 0, and one above it. 16 bits for each are enough: they are added
// up over units, to plan by. `exact`: the costs themselves go with them.
event::CostsGiven CostsOf(Epoch epoch, std::span<const float> costs, bool exact = false);

class CostReport {
 public:
  explicit CostReport(Context& context) : context_(context) {}

  // Takes the place of what was said of the same epoch.
  void OnGiven(const event::CostsGiven& e);
  void OnPlan(const Plan& plan);
  // By position, as CostsGiven::exact; null: they are not known yet.
  std::shared_ptr<const std::vector<float>> Of(Epoch epoch) const;

 private:
  static constexpr std::size_t kMost = 2;  // epochs

  struct Given {
    event::CostsGiven costs;
    std::size_t told = 0;  // samples
  };
  void TellMore();

  Context& context_;
  std::deque<Given> given_;  // ascending
  Epoch epoch_;              // of the last plan
  bool tells_ = false;       // by the last plan
};

}  // namespace lockstep::worker
