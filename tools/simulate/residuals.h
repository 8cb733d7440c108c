// What every worker should have kept of its gradients where it sends few numbers of them: the same
// account as worker/memory/residual.h has, drawn up from commits alone.
#pragma once

#include <array>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/messages.h"
#include "worker/core/layout.h"

namespace lockstep::simulate {

class Residuals {
 public:
  explicit Residuals(const worker::Layout& layout) : layout_(layout) {}

  // A part of this gradient was sealed, and these numbers of it were sent; zeros where none were.
  // What is wrong with that; empty: nothing.
  std::string OnSent(const MemberId& member, RoundId round, PartIndex part,
                     std::span<const float> gradient, std::span<const float> sent);
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

  const worker::Layout& layout_;
  std::map<MemberId, Account> of_;
  std::uint64_t used_ = 0;
};

}  // namespace lockstep::simulate
