// Differences between workers that last: whether there are any, and shares that follow them.
//
// In come the rounds as they were committed, with what is known of each worker's unit times; out
// goes whether a worker has been faster or slower than the median for some rounds in a row, and
// shares by speed while one is, equal ones while not.
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
  // Of a round that is planned: who is no member any more is forgotten.
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
