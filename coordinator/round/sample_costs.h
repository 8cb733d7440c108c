// The costs of samples beside each other, where the program has said them: a long sequence takes
// longer than a short one on any machine.
//
// In: msg::Costs. Out: the cost of a range in usual samples. The mean sample of the first piece
// that came has cost 1, so a worker's time per cost is one number for the whole job.
//
// Invariant: it knows at most two epochs, of each at most kMost samples from the first one on.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "base/ids.h"
#include "base/messages.h"
#include "base/result.h"

namespace lockstep::coordinator {

class SampleCosts {
 public:
  static constexpr std::uint64_t kMost = std::uint64_t{1} << 26;  // of an epoch

  // Pieces that come from another worker, again or too early are left out. `current`: the epoch
  // that is planned. An error is a violation of the protocol.
  Status Take(const MemberId& from, const msg::Costs& message, std::uint64_t epoch_samples,
              Epoch current);
  // Nullopt: it is not known.
  std::optional<double> Of(Epoch epoch, SampleRange range) const;

 private:
  struct Known {
    Epoch epoch;
    MemberId from;
    std::vector<float> costs;  // in usual samples
  };
  std::deque<Known> known_;      // ascending
  std::optional<double> usual_;  // the cost of a usual sample
};

}  // namespace lockstep::coordinator
