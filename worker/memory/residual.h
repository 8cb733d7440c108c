// The part of its gradients that a worker keeps where it does not send all of them
// (exchange.compression). It adds that to the next gradient, so all of a gradient counts in the end
// (error feedback; Stich et al., "Sparsified SGD with Memory").
//
// After a part is sent, the rest of its sum becomes the residual once that part is in the
// parameters. Until then both exist. The residual ignores a part that is left out, whose units are
// given to others, or that is computed again. The residual is sent with part 0. A second part, sent
// while the fate of the first is unknown, has the gradient alone, and its rest is added.
//
// The compute thread owns it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/exchange_words.h"
#include "base/messages.h"
#include "worker/memory/sent_form.h"

namespace lockstep::worker {

class Residual {
 public:
  // All arguments have as many floats as the parameters, all zero. They outlive it, and it swaps
  // them.
  Residual(float* kept, const std::array<float*, kMaxParts>& parts, std::uint64_t count)
      : kept_(kept), parts_{{{parts[0], {}}, {parts[1], {}}}}, count_(count) {}

  // Another work begins, so the fate of earlier parts is known. The parts of `applied` are in the
  // parameters; they may be named more than once, until another part is sent. Others never will be.
  // `copied`: the parameters come from another member, and nothing is known: the kept numbers are
  // lost.
  void OnStart(std::span<const SealedPart> applied, bool copied);
  // Works have other numbers from here on. As OnStart for the parts before; of others nothing is in
  // the parameters.
  void OnNewNumbers(std::span<const SealedPart> applied, bool copied);
  // The place where the gradient of a part of the present work is summed. Begin: from here on it is
  // another part's.
  float* Gradient(PartIndex part) { return parts_[part.value].floats; }
  void Begin(PartIndex part) { parts_[part.value].part = {}; }

  // The gradient of a bucket of this part, `n` parameters, is final. The numbers to send go to
  // `to`, block after block, and the rest stays in its place. Call it once for each parameter and
  // part. False: some are not numbers.
  bool Send(const SealedPart& part, std::uint64_t first, std::uint64_t n, SentForm& form,
            std::byte* to);

  // Does the same while others still read the gradient. It stays unchanged until nobody does, and
  // Settle then brings it to the state after Send. `sent`: the sent numbers, unchanged.
  bool SendEarly(const SealedPart& part, std::uint64_t first, std::uint64_t n, SentForm& form,
                 std::byte* to) const;
  void Settle(const SealedPart& part, std::uint64_t first, std::uint64_t n, SentForm& form,
              const std::byte* sent);

  // The numbers that are in no sent part: what is saved. Restore: they are those of a worker that
  // this one goes on for, before any part of the present work is sent.
  std::span<const float> kept() const { return {kept_, count_}; }
  void Restore(std::span<const float> kept);

 private:
  // The gradient of a part, then its rest. `part`: the part that it belongs to.
  struct Left {
    float* floats;
    SealedPart part;
  };
  // The numbers kept from this parameter on, to be sent with the part; null: none.
  const float* KeptFor(PartIndex part, std::uint64_t first) const {
    return WithKept(part) ? kept_ + first : nullptr;
  }
  bool WithKept(PartIndex part) const { return part.value == 0 && !empty_; }

  float* kept_;
  bool empty_ = true;  // all of kept_ is zero
  std::array<Left, kMaxParts> parts_;
  std::uint64_t count_;
  std::vector<SealedPart> seen_;  // from `applied` in the last StartWork
};

}  // namespace lockstep::worker
