// Gradients as factors of low rank (exchange.compression = powersgd). In a round one factor of each
// matrix is known to all: the one that the round before summed, made orthonormal. A contribution is
// the product with it. That is linear, so the sum of all contributions times the known factor is
// the part of the gradients' sum in the span of that factor. That product is the update's gradient,
// and the sum becomes the known factor of the next round, for the other side.
//
// The optimizer's state keeps the last factors of both kinds (Layout::FactorsWithin). So a member
// with the state of a round knows the factors of the next one, also after catching up or from a
// checkpoint. A factor that was never summed is replaced by random numbers, from the seed, the
// matrix and the round.
//
// Any threads may use it, each on memory of its own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "worker/layout/layout.h"
#include "worker/memory/numbers.h"
#include "worker/memory/sent_form.h"

namespace lockstep::worker {

class Factors {
 public:
  // The layout outlives it; do not call it without a rank.
  Factors(const Layout& layout, NumberType type, std::uint64_t seed)
      : layout_(layout), type_(type), seed_(seed) {}

  // The factors of one round and bucket that are not sent, orthonormal.
  struct Known {
    std::uint32_t bucket = 0;
    RoundId round;
    std::vector<float> numbers;  // of its matrices in turn
  };
  // `last`: the last factors of all parameters, from the state before the round.
  Known KnownIn(RoundId round, std::uint32_t bucket, const float* last) const;

  // Scratch memory for work on a bucket; it grows to the size of its numbers and a few rows.
  struct Room {
    std::vector<float> sent;
    std::vector<float> rows;
  };
  // Takes the gradient of a bucket, `numbers` plus `kept` (null: nothing), and writes the part to
  // send to `to`. False: some are not numbers, or too large to be multiplied; then none that is
  // sent is a number.
  bool Send(const Known& known, const float* numbers, const float* kept, std::byte* to,
            Room* room) const;
  // `numbers` becomes the rest after `sent`.
  void Settle(const Known& known, const std::byte* sent, const float* kept, float* numbers,
              Room* room) const;

  // Reads the numbers of `from`, a contribution or sums, from the number `at` on, in FP32.
  void Read(const std::byte* from, std::uint64_t at, std::uint64_t n, float* to) const;
  // The gradient of these parameters of the bucket, from the bucket's sums in FP32.
  void Gradient(const Known& known, const float* sums, const FloatRange& range, float* to) const;
  // Keeps the sums as the last factors. Where they are all zero, the earlier ones are better.
  void Keep(const Known& known, const float* sums, float* last) const;

 private:
  const Layout& layout_;
  const NumberType type_;
  const std::uint64_t seed_;
};

// The form of one work: a bucket is a block.
class FactorForm final : public SentForm {
 public:
  // Both arguments outlive it.
  FactorForm(const Layout& layout, const Factors& factors)
      : layout_(layout), factors_(factors), known_(layout.bucket_count()) {}

  // Another work begins, on the state that has these last factors; they must stay while any of it
  // is sent.
  void Begin(RoundId round, const float* last);

  std::uint64_t most() const override { return layout_.parameter_count(); }
  std::uint64_t BytesOf(const SentBlock& block) const override {
    return layout_.InContribution({block.first, block.count}).count * layout_.number_bytes();
  }
  bool SendEarly(const SentBlock& block, const float* numbers, const float* kept,
                 std::byte* to) override;
  void Settle(const SentBlock& block, const std::byte* sent, const float* kept,
              float* numbers) override;

 private:
  const Factors::Known& KnownOf(const SentBlock& block);

  const Layout& layout_;
  const Factors& factors_;
  RoundId round_;
  const float* last_ = nullptr;
  std::vector<std::optional<Factors::Known>> known_;  // by bucket, on request
  Factors::Room room_;
};

}  // namespace lockstep::worker
