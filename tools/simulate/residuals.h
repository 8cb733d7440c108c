// What every worker should have kept of its gradients where it does not send all of them: the same
// account as worker/memory/residual.h has, drawn up from commits alone.
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

  // A part of this gradient was sealed, and these numbers of it were sent; zeros where none were;
  // or these of factors, computed with the state that has `factors`. What is wrong with that;
  // empty: nothing.
  std::string OnSent(const MemberId& member, RoundId round, PartIndex part,
                     std::span<const float> gradient, std::span<const float> sent,
                     std::span<const float> factors);
  // It has applied the round, of these parts.
  void OnApplied(const MemberId& member, RoundId round, std::span<const CommittedPart> parts);
  // It has copied somebody's state.
  void OnCopied(const MemberId& member) { of_.erase(member); }
  void Clear() { of_.clear(); }

  std::uint64_t used() const { return used_; }  // parts with which something kept was sent

 private:
  struct Left {
    RoundId round;
    std::vector<float> floats;
  };
  struct Account {
    std::vector<float> kept;
    std::array<std::optional<Left>, kMaxParts> open;
  };

  // Takes from `left` what was sent of it.
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
