// The contents of a contribution that has only some numbers of a gradient (exchange.compression),
// block after block, and the rest of the gradient.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/sparse_block.h"
#include "worker/memory/numbers.h"
#include "worker/memory/sparse.h"

namespace lockstep::worker {

// Consecutive parameters within one bucket.
struct SentBlock {
  std::uint64_t first = 0;
  std::uint64_t count = 0;
};

// The compute thread owns it.
class SentForm {
 public:
  virtual ~SentForm() = default;

  // A bucket is cut into blocks of so many parameters; the last one may have fewer.
  virtual std::uint64_t most() const = 0;
  // The size of the block in a contribution.
  virtual std::uint64_t BytesOf(const SentBlock& block) const = 0;
  // In the functions below, the gradient of these parameters is `numbers`, plus the `kept` ones of
  // earlier gradients unless that is null.
  //
  // The numbers to send go to `to`. False: one of them is not a number, and then no sent one is a
  // number.
  virtual bool SendEarly(const SentBlock& block, const float* numbers, const float* kept,
                         std::byte* to) = 0;
  // `numbers` becomes the rest after `sent`, the output of SendEarly.
  virtual void Settle(const SentBlock& block, const std::byte* sent, const float* kept,
                      float* numbers) = 0;
  // Does both.
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
