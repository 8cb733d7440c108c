#include "worker/memory/residual.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace lockstep::worker {
namespace {

void AddTo(float* block, const float* kept, std::uint64_t n) {
  for (std::uint64_t i = 0; i < n; ++i) block[i] += kept[i];
}

// Calls `visit(block, bytes)` for each block of these parameters.
template <class Byte, class Visit>
void ForEachBlock(std::uint64_t first, std::uint64_t n, SentForm& form, Byte* bytes, Visit visit) {
  for (const std::uint64_t end = first + n; first < end;) {
    const SentBlock block{first, std::min(form.most(), end - first)};
    visit(block, bytes);
    bytes += form.BytesOf(block);
    first += block.count;
  }
}

}  // namespace

// It follows the order of the parts. The first one's rest, which includes the numbers kept so far,
// replaces those before the second one's is added.
void Residual::OnStart(std::span<const SealedPart> parts, bool copied) {
  if (copied && !empty_) {
    std::fill_n(kept_, count_, 0.0f);
    empty_ = true;
  }
  for (const SealedPart& applied : parts) {
    if (std::ranges::find(seen_, applied) != seen_.end()) continue;
    Left& left = parts_[applied.part.value];
    LOCKSTEP_CHECK(left.part == applied, "I2: the rest of part {} of work {} is gone", applied.part,
                   applied.work);
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

void Residual::OnNewNumbers(std::span<const SealedPart> applied, bool copied) {
  OnStart(copied ? std::span<const SealedPart>() : applied, copied);
  seen_.clear();
  for (Left& left : parts_) left.part = {};
}

void Residual::Restore(std::span<const float> kept) {
  LOCKSTEP_CHECK(kept.size() == count_, "{} kept numbers of {} parameters", kept.size(), count_);
  std::ranges::copy(kept, kept_);
  empty_ = false;
}

bool Residual::Send(const SealedPart& part, std::uint64_t first, std::uint64_t n, SentForm& form,
                    std::byte* to) {
  Left& left = parts_[part.part.value];
  left.part = part;
  bool fits = true;
  ForEachBlock(first, n, form, to, [&](const SentBlock& block, std::byte* bytes) {
    fits =
        form.Send(block, left.floats + block.first, KeptFor(part.part, block.first), bytes) && fits;
  });
  return fits;
}

bool Residual::SendEarly(const SealedPart& part, std::uint64_t first, std::uint64_t n,
                         SentForm& form, std::byte* to) const {
  const float* gradient = parts_[part.part.value].floats;
  bool fits = true;
  ForEachBlock(first, n, form, to, [&](const SentBlock& block, std::byte* bytes) {
    fits = form.SendEarly(block, gradient + block.first, KeptFor(part.part, block.first), bytes) &&
           fits;
  });
  return fits;
}

void Residual::Settle(const SealedPart& part, std::uint64_t first, std::uint64_t n, SentForm& form,
                      const std::byte* sent) {
  Left& left = parts_[part.part.value];
  left.part = part;
  ForEachBlock(first, n, form, sent, [&](const SentBlock& block, const std::byte* bytes) {
    form.Settle(block, bytes, KeptFor(part.part, block.first), left.floats + block.first);
  });
}

}  // namespace lockstep::worker
