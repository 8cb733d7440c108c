// The residuals that every worker should have kept of its gradients where it does not send all
// numbers. It is the same account as worker/memory/residual.h has, computed from commits alone.
#pragma once

#include <array>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/messages.h"
#include "worker/layout/layout.h"
#include "worker/memory/factors.h"

namespace lockstep::simulate {

class Residuals {
 public:
  Residuals(const worker::Layout& layout, const worker::Factors& factors)
      : layout_(layout), factors_(factors) {}

  // A part of this gradient was sealed, and these numbers of it were sent; the others are zeros.
  // With factors, these were sent, computed with the state that has `factors`. Returns the error in
  // that; empty: there is none.
  std::string OnSent(const MemberId& member, RoundId round, PartIndex part,
                     std::span<const float> gradient, std::span<const float> sent,
                     std::span<const float> factors);
  // The member has applied the round with these parts.
  void OnApplied(const MemberId& member, RoundId round, std::span<const CommittedPart> parts);
  // The member has copied another one's state.
  void OnCopied(const MemberId& member) { of_.erase(member); }
  void Clear() { of_.clear(); }

  std::uint64_t used() const { return used_; }  // parts that were sent with something kept earlier

 private:
  struct Left {
    RoundId round;
    std::vector<float> floats;
  };
  struct Account {
    std::vector<float> kept;
    std::array<std::optional<Left>, kMaxParts> open;
  };

  // Takes the sent numbers from `left`.
  std::string TakeLargest(RoundId round, PartIndex part, std::span<const float> sent, Left* left,
                          bool* known) const;
  std::string TakeFactors(RoundId round, PartIndex part, std::span<const float> sent,
                          std::span<const float> factors, Left* left, bool* known) const;

  const worker::Layout& layout_;
  const worker::Factors& factors_;
  std::map<MemberId, Account> of_;
  std::uint64_t used_ = 0;
};

}  // namespace lockstep::simulate
