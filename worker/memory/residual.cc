#include "worker/memory/residual.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "worker/memory/sparse.h"

namespace lockstep::worker {

// In the order of the parts, so that the first one's, which has what was kept in it, takes the
// place of that before the second one's is added.
void Residual::OnStart(std::span<const SealedPart> parts, bool copied) {
  if (copied && !empty_) {
    std::fill_n(kept_, count_, 0.0f);
    empty_ = true;
  }
  for (const SealedPart& applied : parts) {
    if (std::ranges::find(seen_, applied) != seen_.end()) continue;
    Left& left = parts_[applied.part.value];
    LOCKSTEP_CHECK(left.part == applied, "I2: what is left of part {} of work {} is gone",
                   applied.part, applied.work);
    left.part = {};
    if (applied.part.value == 0 || empty_) {
      std::swap(kept_, left.floats);
      empty_ = false;
    } else {
      for (std::uint64_t i = 0; i < count_; ++i) kept_[i] += left.floats[i];
    }
  }
  seen_.assign(parts.begin(), parts.end());
}

bool Residual::Send(const SealedPart& part, std::uint64_t first, std::uint64_t n, NumberType type,
                    std::uint32_t entries, std::byte* to) {
  Left& left = parts_[part.part.value];
  left.part = part;
  const bool with_kept = part.part.value == 0 && !empty_;
  const std::uint64_t bytes = SparseBlockNumbers(entries, NumberBytes(type)) * NumberBytes(type);
  bool fits = true;
  for (const std::uint64_t end = first + n; first < end; first += kSparseBlock, to += bytes) {
    const std::uint64_t count = std::min(kSparseBlock, end - first);
    float* block = left.floats + first;
    if (with_kept) {
      for (std::uint64_t i = 0; i < count; ++i) block[i] += kept_[first + i];
    }
    fits = TakeLargest(type, entries, block, count, to) && fits;
  }
  return fits;
}

}  // namespace lockstep::worker
