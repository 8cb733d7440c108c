#include "worker/memory/sent_form.h"

#include <algorithm>
#include <array>

namespace lockstep::worker {
namespace {

void Add(const float* kept, std::uint64_t n, float* numbers) {
  if (kept == nullptr) return;
  for (std::uint64_t i = 0; i < n; ++i) numbers[i] += kept[i];
}

}  // namespace

bool LargestOnly::SendEarly(const SentBlock& block, const float* numbers, const float* kept,
                            std::byte* to) {
  std::array<float, kSparseBlock> aside;
  std::copy_n(numbers, block.count, aside.data());
  return Send(block, aside.data(), kept, to);
}

// AddSparse writes to a whole block at most.
void LargestOnly::Settle(const SentBlock& block, const std::byte* sent, const float* kept,
                         float* numbers) {
  std::array<float, kSparseBlock> aside;
  std::copy_n(numbers, block.count, aside.data());
  Add(kept, block.count, aside.data());
  AddSparse(type_, entries_, sent, -1.0f, aside.data());
  std::copy_n(aside.data(), block.count, numbers);
}

bool LargestOnly::Send(const SentBlock& block, float* numbers, const float* kept, std::byte* to) {
  Add(kept, block.count, numbers);
  return TakeLargest(type_, entries_, numbers, block.count, to);
}

}  // namespace lockstep::worker
