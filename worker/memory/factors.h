// Gradients as factors of low rank (exchange.compression = powersgd). In a round of each matrix one
// factor is known to all: that which the round before it summed, made orthonormal. A contribution
// is the product with it, which is linear, so the product of the sum of all contributions with the
// known factor is what the sum of the gradients has in the span of that. That product is the
// update's gradient, and the sum what is known in the next round, for the other factor.
//
// The last factors of both kinds are kept where the optimizer's state is (Layout::FactorsWithin).
// So whoever has the state of a round knows the factors of the next one: who catches up, who goes
// on from a checkpoint. Of a factor that was never summed random numbers take the place, of the
// seed, the matrix and the round.
//
// Any threads, each on memory of its own.
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
  // The layout outlives it; without a rank nothing is asked of this.
  Factors(const Layout& layout, NumberType type, std::uint64_t seed)
      : layout_(layout), type_(type), seed_(seed) {}

  // Of one round and bucket: the factors that are not sent, orthonormal.
  struct Known {
    std::uint32_t bucket = 0;
    RoundId round;
    std::vector<float> numbers;  // of its matrices in turn
  };
  // `last`: the last factors of all parameters, of the state before the round.
  Known KnownIn(RoundId round, std::uint32_t bucket, const float* last) const;

  // Room for what is done to a bucket; grows to what its numbers and a few rows take.
  struct Room {
    std::vector<float> sent;
    std::vector<float> rows;
  };
  // Of the gradient of a bucket, `numbers` plus `kept` (null: nothing): what is sent goes to `to`.
  // False: some are no numbers, or too large to be multiplied; then none that is sent is one.
  bool Send(const Known& known, const float* numbers, const float* kept, std::byte* to,
            Room* room) const;
  // `numbers` becomes what is left of it, where this is what was sent.
  void Settle(const Known& known, const std::byte* sent, const float* kept, float* numbers,
              Room* room) const;

  // The numbers of `from`, a contribution or sums, from the number `at` on, in FP32.
  void Read(const std::byte* from, std::uint64_t at, std::uint64_t n, float* to) const;
  // The gradient of these parameters of the bucket, by the bucket's sums in FP32.
  void Gradient(const Known& known, const float* sums, const FloatRange& range, float* to) const;
  // The sums are the last factors. Where they are all zero, those before are better.
  void Keep(const Known& known, const float* sums, float* last) const;

 private:
  const Layout& layout_;
  const NumberType type_;
  const std::uint64_t seed_;
};

// Of one work: a bucket is a block.
class FactorForm final : public SentForm {
 public:
  // Both outlive it.
  FactorForm(const Layout& layout, const Factors& factors)
      : layout_(layout), factors_(factors), known_(layout.bucket_count()) {}

  // Another work begins, on the state that has these last factors, and has them as long as any of
  // it is sent.
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
  std::vector<std::optional<Factors::Known>> known_;  // by bucket, when it is asked for
  Factors::Room room_;
};

}  // namespace lockstep::worker
