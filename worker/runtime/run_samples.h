// Which samples a run of units is of.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/ids.h"
#include "base/messages.h"

namespace lockstep::worker {

// The order of the samples of one epoch (base/permutation.h), drawn when its first unit comes.
class SampleOrder {
 public:
  const std::vector<std::uint32_t>& Of(Epoch epoch, std::uint64_t seed, std::uint64_t samples);

 private:
  std::optional<Epoch> epoch_;
  std::vector<std::uint32_t> order_;
};

// A run's samples: by positions in the epoch's order, and which they are.
class RunSamples {
 public:
  // The samples that it shows afterwards lie in `order` where the units follow each other.
  void Take(std::span<const Unit> units, std::span<const std::uint32_t> order);
  std::span<const SampleRange> ranges() const { return ranges_; }
  std::span<const std::uint32_t> samples() const { return samples_; }

 private:
  std::vector<SampleRange> ranges_;
  std::vector<std::uint32_t> gathered_;  // where there are several ranges
  std::span<const std::uint32_t> samples_;
};

}  // namespace lockstep::worker
