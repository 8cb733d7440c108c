// What a worker keeps of its gradients where it does not send all of them (exchange.compression):
// with the next gradient it gets another chance, so all of a gradient counts in the end (error
// feedback; Stich et al., "Sparsified SGD with Memory").
//
// What a part that is sent leaves of the sum that it was taken of is the residual once that part is
// in the parameters. Until then both are there: of a part that is left out, whose units are given
// to others, or that is computed again, the residual knows nothing. It goes with part 0; in a
// second part, of which it is not known yet what becomes of the first, goes the gradient alone, and
// what that leaves is added.
//
// The compute thread's.
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
  // As many floats as the parameters each, all zero. They outlive it, and change places.
  Residual(float* kept, const std::array<float*, kMaxParts>& parts, std::uint64_t count)
      : kept_(kept), parts_{{{parts[0], {}}, {parts[1], {}}}}, count_(count) {}

  // Another work begins, so what became of the parts before is known: these are in the parameters,
  // which may be said more than once, until another part is sent, and others never will be.
  // `copied`: the parameters are somebody else's, and nothing is known: what was kept is lost.
  void OnStart(std::span<const SealedPart> applied, bool copied);
  // Where the gradient of a part of the work that is begun is summed. Begin: another one's from
  // here on.
  float* Gradient(PartIndex part) { return parts_[part.value].floats; }
  void Begin(PartIndex part) { parts_[part.value].part = {}; }

  // The gradient of a bucket of this part, `n` parameters, is final: what is sent of it goes to
  // `to`, block after block, and the rest stays in its place. Once for each parameter and part.
  // False: not all of it are numbers.
  bool Send(const SealedPart& part, std::uint64_t first, std::uint64_t n, SentForm& form,
            std::byte* to);

  // The same while the gradient is still read by others: it stays as it is, until nobody does and
  // Settle makes of it what Send would have. `sent`: what went, as it is still there.
  bool SendEarly(const SealedPart& part, std::uint64_t first, std::uint64_t n, SentForm& form,
                 std::byte* to) const;
  void Settle(const SealedPart& part, std::uint64_t first, std::uint64_t n, SentForm& form,
              const std::byte* sent);

  // What is in no part that was sent, for tests and people.
  std::span<const float> kept() const { return {kept_, count_}; }

 private:
  // Of a part: its gradient, then what is left of it. `part`: whose that is.
  struct Left {
    float* floats;
    SealedPart part;
  };
  // What was kept from this parameter on, to be sent with the part; null: nothing.
  const float* KeptFor(PartIndex part, std::uint64_t first) const {
    return WithKept(part) ? kept_ + first : nullptr;
  }
  bool WithKept(PartIndex part) const { return part.value == 0 && !empty_; }

  float* kept_;
  bool empty_ = true;  // all of kept_ is zero
  std::array<Left, kMaxParts> parts_;
  std::uint64_t count_;
  std::vector<SealedPart> seen_;  // of what was applied, in the last StartWork
};

}  // namespace lockstep::worker
