// Differences between workers that last: whether there are any, and shares that follow them.
//
// Each committed round comes in, with the workers' unit times. Some rounds in a row in which a
// worker is faster or slower than the median make a lasting difference. While there is one, shares
// follow speed; else they are equal.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "policies/balance.h"
#include "policies/policy.h"

namespace lockstep::policies {

class LastingDifference {
 public:
  // Takes a planned round, and forgets workers that are no longer members.
  void OnPlanned(std::span<const WorkerView> members);
  void OnCommitted(const RoundView& view);
  bool uneven() const { return uneven_; }

 private:
  // By slot: rounds in a row in which the worker's mean unit time differed from the median.
  std::vector<std::uint32_t> rounds_different_;
  bool uneven_ = false;
};

// A work rule that moves nothing: shares as `balance` while workers differ for good, else equal.
std::unique_ptr<WorkRule> MakeLastingShares(const BalanceOptions& options);

}  // namespace lockstep::policies
