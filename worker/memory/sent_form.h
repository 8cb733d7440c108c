// What a contribution has of a gradient where that is not all of it (exchange.compression), block
// after block, and what is left of the gradient then.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/sparse_block.h"
#include "worker/memory/numbers.h"
#include "worker/memory/sparse.h"

namespace lockstep::worker {

// Consecutive parameters, none beyond the bucket that they are of.
struct SentBlock {
  std::uint64_t first = 0;
  std::uint64_t count = 0;
};

// The compute thread's.
class SentForm {
 public:
  virtual ~SentForm() = default;

  // A bucket is cut into blocks of so many parameters, the last of which may have fewer.
  virtual std::uint64_t most() const = 0;
  // What the block takes in a contribution.
  virtual std::uint64_t BytesOf(const SentBlock& block) const = 0;
  // In all that follows the gradient of these parameters is `numbers`, plus `kept`, unless that is
  // null: what was kept before.
  //
  // What is sent goes to `to`. False: one of them is no number, and neither is what is sent.
  virtual bool SendEarly(const SentBlock& block, const float* numbers, const float* kept,
                         std::byte* to) = 0;
  // `numbers` becomes what is left, where this is what SendEarly has sent.
  virtual void Settle(const SentBlock& block, const std::byte* sent, const float* kept,
                      float* numbers) = 0;
  // Both.
  virtual bool Send(const SentBlock& block, float* numbers, const float* kept, std::byte* to) {
    const bool fits = SendEarly(block, numbers, kept, to);
    Settle(block, to, kept, numbers);
    return fits;
  }
};

// The largest numbers of each grain (topk).
class LargestOnly final : public SentForm {
 public:
  LargestOnly(NumberType type, std::uint32_t entries) : type_(type), entries_(entries) {}

  std::uint64_t most() const override { return kSparseBlock; }
  std::uint64_t BytesOf(const SentBlock& /*block*/) const override {
    return SparseBlockNumbers(entries_, NumberBytes(type_)) * NumberBytes(type_);
  }
  bool SendEarly(const SentBlock& block, const float* numbers, const float* kept,
                 std::byte* to) override;
  void Settle(const SentBlock& block, const std::byte* sent, const float* kept,
              float* numbers) override;
  bool Send(const SentBlock& block, float* numbers, const float* kept, std::byte* to) override;

 private:
  const NumberType type_;
  const std::uint32_t entries_;
};

}  // namespace lockstep::worker
