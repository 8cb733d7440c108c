#include "worker/runtime/run_samples.h"

#include "base/permutation.h"

namespace lockstep::worker {

const std::vector<std::uint32_t>& SampleOrder::Of(Epoch epoch, std::uint64_t seed,
                                                  std::uint64_t samples) {
  if (!epoch_ || *epoch_ != epoch) {
    order_ = EpochOrder(seed, epoch, static_cast<std::uint32_t>(samples));
    epoch_ = epoch;
  }
  return order_;
}

void RunSamples::Take(std::span<const Unit> units, std::span<const std::uint32_t> order) {
  ranges_.clear();
  for (const Unit& unit : units) {
    if (!ranges_.empty() && ranges_.back().to == unit.range.from) {
      ranges_.back().to = unit.range.to;
    } else {
      ranges_.push_back(unit.range);
    }
  }
  samples_ = {};
  if (ranges_.size() == 1) {
    samples_ = order.subspan(ranges_[0].from, ranges_[0].size());
    return;
  }
  gathered_.clear();
  for (const SampleRange& range : ranges_) {
    const auto part = order.subspan(range.from, range.size());
    gathered_.insert(gathered_.end(), part.begin(), part.end());
  }
  samples_ = gathered_;
}

}  // namespace lockstep::worker
