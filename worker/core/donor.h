// The other side of catching up: copies buckets of the own state for joiners, between two updates.
// It copies one at a time for each joiner and kStateOutBuffers at a time in all.
//
// In: what joiners want and have taken, copies that are made. Out: CopyState, StateReady, and the
// pieces of the copies. A copy is of the state at an apply boundary, never of one in between.
#pragma once

#include <map>
#include <optional>

#include "worker/core/buffer_leases.h"
#include "worker/core/peers.h"

namespace lockstep::worker {

// Two buffers are enough, because a joiner copies one bucket at a time. A joiner that does not
// fetch its copy holds up other joiners at most, never a round.
class Donor {
 public:
  Donor(Context& context, Buffers& buffers) : context_(context), buffers_(buffers) {}

  // An error: the peer said what cannot be.
  Status OnStateWant(const MemberId& joiner, const StateWant& want);
  void OnStateTaken(const MemberId& joiner, const StateTaken& taken);
  void OnPeerDown(const MemberId& joiner) { Erase(joiner); }
  // True when the operation was a copy.
  bool OnOpDone(const event::OpDone& done);
  // `next`: the version of the own state, with `attempt` at the round before; none while it is not
  // level. Not to be called while an update is under way.
  void Update(std::optional<RoundId> next, Attempt attempt);

  void CheckInvariants() const;

  std::optional<BufferRange> FindPiece(const MemberId& joiner, const PieceName& piece) const;

 private:
  // Waits until it has a buffer, then is copied (`op`), then can be fetched (`ready`), until the
  // joiner has taken it or asks for something else. The tag names this use of the buffer.
  struct Request {
    StateWant want;
    std::uint32_t tag = 0;
    std::uint64_t version = 0;
    Attempt attempt;
    std::optional<BufferId> out;
    std::optional<std::uint64_t> op;
    bool ready = false;
  };
  void Erase(const MemberId& joiner);

  Context& context_;
  Buffers& buffers_;
  std::map<MemberId, Request> requests_;
};

}  // namespace lockstep::worker
