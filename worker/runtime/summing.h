// Sums of contributions in the form that the job exchanges: all numbers in FP32 or 16 bits
// (exchange.dtype), or few of them (exchange.compression). Also how the last two are read again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "worker/core/step_io.h"
#include "worker/layout/layout.h"
#include "worker/memory/exchange_memory.h"
#include "worker/memory/narrow.h"
#include "worker/runtime/sources.h"
#include "worker/runtime/worker_buffers.h"

namespace lockstep::worker {

// Any threads, each on slices of its own.
class Summing {
 public:
  // `rounding_seed`: sums of 16 bits are rounded at random, by this seed.
  Summing(const Layout& layout, WorkerBuffers& buffers, std::optional<std::uint64_t> rounding_seed)
      : layout_(layout),
        buffers_(buffers),
        memory_(buffers.memory()),
        rounding_seed_(rounding_seed) {}

  // Writes the sums of a slice, whose first number begins a grain, out of one source for each
  // input. False: not all of them could be put there, for which FalseIsTooLarge says why. A device
  // says so later, in ExchangeMemory::Finish.
  bool Make(const action::Reduce& reduce, const std::vector<OpenSource>& sources,
            const Slice& slice, bool large);
  // True: a sum of finite terms is beyond the largest number of the type, and counts as that one.
  // False: a sum is infinite or not a number.
  bool FalseIsTooLarge() const { return buffers_.type() != NumberType::kFp32 || few(); }
  // The sums of squares of the grains of sums that have been made, where they are asked for; few
  // numbers have them already.
  void MakeSquares(const action::Reduce& reduce, const Slice& slice);
  // Which of the inputs are not finite, by a pass over each of them; none where finite terms have a
  // sum that is too large.
  std::vector<std::uint32_t> NotFinite(const action::Reduce& reduce,
                                       const std::vector<OpenSource>& sources);

  // Sums of so many entries for a grain (Layout::SumEntries) are all of the gradient in FP32, to be
  // read where they lie.
  bool Plain(std::uint32_t entries) const {
    return buffers_.type() == NumberType::kFp32 && entries == 0 && layout_.rank() == 0;
  }
  // The sums of `range`, whose first parameter begins a grain, in FP32. On the host.
  void Widen(const OpenSource& sums, std::uint32_t entries, const FloatRange& range,
             float* to) const;

 private:
  bool few() const { return layout_.kept() > 0; }
  bool MakePlain(const action::Reduce& reduce, const std::vector<OpenSource>& sources,
                 const Slice& slice, bool large);
  bool MakeNarrow(const action::Reduce& reduce, const std::vector<OpenSource>& sources,
                  const Slice& slice);
  bool MakeFew(const action::Reduce& reduce, const std::vector<OpenSource>& sources,
               const Slice& slice);

  const Layout& layout_;
  WorkerBuffers& buffers_;
  ExchangeMemory& memory_;
  const std::optional<std::uint64_t> rounding_seed_;
};

}  // namespace lockstep::worker
