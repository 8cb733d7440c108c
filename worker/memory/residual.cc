#include "worker/memory/residual.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/check.h"
#include "worker/memory/sparse.h"

namespace lockstep::worker {
namespace {

void AddTo(float* block, const float* kept, std::uint64_t n) {
  for (std::uint64_t i = 0; i < n; ++i) block[i] += kept[i];
}

// Calls `visit(at, count, bytes)` for each block of these parameters.
template <class Byte, class Visit>
void ForEachBlock(std::uint64_t first, std::uint64_t n, NumberType type, std::uint32_t entries,
                  Byte* bytes, Visit visit) {
  const std::uint64_t number = NumberBytes(type);
  for (const std::uint64_t end = first + n; first < end; first += kSparseBlock) {
    visit(first, std::min(kSparseBlock, end - first), bytes);
    bytes += SparseBlockNumbers(entries, number) * number;
  }
}

}  // namespace

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
      AddTo(kept_, left.floats, count_);
    }
  }
  seen_.assign(parts.begin(), parts.end());
}

bool Residual::Send(const SealedPart& part, std::uint64_t first, std::uint64_t n, NumberType type,
                    std::uint32_t entries, std::byte* to) {
  Left& left = parts_[part.part.value];
  left.part = part;
  bool fits = true;
  ForEachBlock(first, n, type, entries, to,
               [&](std::uint64_t at, std::uint64_t count, std::byte* bytes) {
                 float* block = left.floats + at;
                 if (WithKept(part.part)) AddTo(block, kept_ + at, count);
                 fits = TakeLargest(type, entries, block, count, bytes) && fits;
               });
  return fits;
}

bool Residual::SendEarly(const SealedPart& part, std::uint64_t first, std::uint64_t n,
                         NumberType type, std::uint32_t entries, std::byte* to) const {
  const float* gradient = parts_[part.part.value].floats;
  std::array<float, kSparseBlock> block;
  bool fits = true;
  ForEachBlock(first, n, type, entries, to,
               [&](std::uint64_t at, std::uint64_t count, std::byte* bytes) {
                 std::copy_n(gradient + at, count, block.data());
                 if (WithKept(part.part)) AddTo(block.data(), kept_ + at, count);
                 fits = TakeLargest(type, entries, block.data(), count, bytes) && fits;
               });
  return fits;
}

// A number less what is sent of it is what TakeLargest leaves.
void Residual::Settle(const SealedPart& part, std::uint64_t first, std::uint64_t n, NumberType type,
                      std::uint32_t entries, const std::byte* sent) {
  Left& left = parts_[part.part.value];
  left.part = part;
  std::array<float, kSparseBlock> block;
  ForEachBlock(first, n, type, entries, sent,
               [&](std::uint64_t at, std::uint64_t count, const std::byte* bytes) {
                 float* gradient = left.floats + at;
                 std::copy_n(gradient, count, block.data());
                 if (WithKept(part.part)) AddTo(block.data(), kept_ + at, count);
                 AddSparse(type, entries, bytes, -1.0f, block.data());
                 std::copy_n(block.data(), count, gradient);
               });
}

}  // namespace lockstep::worker
