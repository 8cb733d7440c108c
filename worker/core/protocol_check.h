// Checks what the coordinator says, before the core acts on it. The control channel has checked
// that a message keeps what base/messages.h promises of it by itself. Here it is checked against
// what only this worker knows: its layout, its data, what it offered and what came before. Behind
// this check no handler meets a position that is not in its buffers, or a number that overflows.
#pragma once

#include <cstdint>

#include "base/messages.h"
#include "base/result.h"
#include "worker/core/step_machine.h"
#include "worker/layout/layout.h"

namespace lockstep::worker {

// More rounds than any job has, and few enough that sums of round numbers do not overflow.
inline constexpr std::uint64_t kMaxRounds = std::uint64_t{1} << 48;
// Of one owner in a map; with all of kMaxMembers it leaves a product with the grains of a bucket
// far from 2^64.
inline constexpr std::uint32_t kMaxOwnerWeight = 1u << 16;
inline constexpr std::size_t kMaxMembers = 16384;

// It does not check what may be true by now and was not when it was said, or the other way round.
// Examples are rounds that are over, members that have left, and attempts that were replaced. A
// message that crossed a decision on its way is no breach, and the handlers take it for what it is.
class ProtocolCheck {
 public:
  // Both outlive it.
  ProtocolCheck(const MachineConfig& config, const Layout& layout)
      : config_(config), layout_(layout) {}

  // An error says what of the message cannot be. Messages come in the order in which they were
  // sent; after an error nothing more is to be taken.
  Status Take(const msg::ToWorker& message);

 private:
  Status Check(const msg::Welcome& m) const;
  Status Check(const msg::Followed& m) const;
  Status Check(const msg::Form& m) const;
  Status Check(const msg::Start& m);
  Status Check(const msg::Commit& m) const;
  Status Check(const msg::Assign& m) const;
  Status Check(const msg::NewOwners& m) const;
  Status Check(const msg::FenceAttempt& m) const;
  Status Check(const msg::Hedge& m) const;
  Status Check(const msg::TakeSums& m) const;
  Status Check(const msg::CatchUp& m) const;
  Status Check(const msg::Decide& m) const { return CheckRound(m.round); }
  Status Check(const msg::GiveParameters& m);
  Status Check(const msg::Evaluate& m) const;
  Status Check(const msg::StateChunk& m);
  Status Check(const msg::Revoke& m) const { return CheckRound(m.round); }
  Status Check(const msg::FenceRound& m) const { return CheckRound(m.round); }
  // For messages that name no position and no round, or are not for the core.
  template <class Message>
  Status Check(const Message&) const {
    return {};
  }

  Status CheckRound(RoundId round) const;
  Status CheckUnits(const std::vector<Unit>& units) const;
  Status CheckOwners(const OwnerMap& map) const;
  Status CheckRoots(const msg::Commit& m) const;
  Status CheckPlan(const Plan& plan) const;

  const MachineConfig& config_;
  const Layout& layout_;
  bool started_ = false;
  // Of a checkpoint: what comes next, by what has come.
  std::uint32_t next_tensor_ = 0;
  std::uint64_t next_offset_ = 0;
  std::uint32_t giving_ = 0;  // 0: its parameters were not asked for
  std::uint64_t give_upto_ = 0;
};

}  // namespace lockstep::worker
