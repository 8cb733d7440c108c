// The arrival times of recent contributions, for rules that set a deadline.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "base/time.h"
#include "policies/policy.h"

namespace lockstep::policies {

class Arrivals {
 public:
  // Keeps `rounds` rounds.
  explicit Arrivals(std::size_t rounds) : rounds_(rounds) {}

  // A committed round. A worker that had not arrived counts with its expected time, so that leaving
  // it out does not make it look quick. `full_work`: who had units taken away counts as if it had
  // computed all that it was given at the start, at its pace.
  void Add(const RoundView& view, bool full_work);

  // Median plus `k` times the median absolute deviation, which counts as at least 2 % of the
  // median; nothing before `rounds` rounds, at most five, are known.
  std::optional<Duration> Deadline(double k) const;

  // From `least` on, the longest wait that is about as good as any by the arrivals per second of
  // the known rounds. A shorter one would leave out what it must wait for later. It is longer than
  // all arrivals if it pays to wait for each of them. A worker that had not arrived counts as never
  // there: a wait that followed the guesses would grow with each round in which a worker stalls.
  Duration BestWait(Duration least) const;

  // Each known round has one vector, ascending.
  const std::vector<std::vector<Duration>>& rounds() const { return recent_; }

 private:
  const std::size_t rounds_;
  std::size_t next_ = 0;
  std::vector<std::vector<Duration>> recent_;
  std::vector<std::vector<Duration>> arrived_;  // the same rounds, without guesses
};

}  // namespace lockstep::policies
