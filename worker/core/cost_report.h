// Tells the coordinator what the samples of an epoch cost (msg::Costs), for all workers, since all
// programs say the same. It is told by the member with the lowest id.
//
// In: what the program says, plans. Out: pieces, one with each plan, so that they never hold up
// what a round waits for.
#pragma once

#include <cstddef>
#include <deque>
#include <span>

#include "worker/core/context.h"

namespace lockstep::worker {

// `costs`: by position; none below 0, and one above it. 16 bits for each are enough: they are added
// up over units, to plan by.
event::CostsGiven CostsOf(Epoch epoch, std::span<const float> costs);

class CostReport {
 public:
  explicit CostReport(Context& context) : context_(context) {}

  // Takes the place of what was said of the same epoch.
  void OnGiven(const event::CostsGiven& e);
  void OnPlan(const Plan& plan);

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
