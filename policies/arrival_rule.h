// The common part of the closing rules `deadline` and `partial`: a deadline of median + k x MAD of
// the recent arrivals, and a minimum of contributors for an early close.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

#include "policies/arrivals.h"
#include "policies/policy.h"

namespace lockstep::policies {

struct ArrivalOptions {
  double k = 4;
  std::uint32_t min_contributors = 1;
  std::uint32_t workers = 1;  // of the job
  std::uint32_t window = 20;  // rounds
};

class ArrivalRule : public ClosingRule {
 public:
  std::uint32_t Spare() const final {
    return options_.workers - std::min(options_.workers, options_.min_contributors);
  }
  bool CanDoWithout(const RoundView& view) final {
    return !view.exact && view.with_units >= least();
  }
  // An exact round waits for all, so it tells nothing about how long to wait.
  void OnCommitted(const RoundView& view) final {
    if (!view.exact) arrivals_.Add(view, full_work_);
    deadline_ = arrivals_.Deadline(options_.k);
    // A worker that is left out has computed for nothing. One that is late may give what it has.
    if (deadline_ && !full_work_) deadline_ = arrivals_.BestWait(*deadline_);
  }

 protected:
  // `full_work`: see Arrivals::Add.
  ArrivalRule(const ArrivalOptions& options, bool full_work)
      : options_(options), full_work_(full_work), arrivals_(options.window) {}

  std::uint32_t least() const { return std::max(options_.min_contributors, 1u); }
  // The deadline since the round's start; nullopt while too few rounds are known.
  const std::optional<Duration>& deadline() const { return deadline_; }

 private:
  const ArrivalOptions options_;
  const bool full_work_;
  Arrivals arrivals_;
  std::optional<Duration> deadline_;
};

}  // namespace lockstep::policies
