// The initial broadcast of a new job whose workers have different parameters
// (msg::Ready::own_parameters). The worker with the lowest id is the root, as rank 0 in
// DistributedDataParallel, so that programs need not share a seed. A worker that joins while the
// first round is open gets them from a live one.
//
// They are passed on as they come and kept nowhere: who gives them may send so much more than the
// slowest of the others has stored. A worker that sends or stores nothing for liveness.timeout is
// evicted. When the root goes, another one begins again at the first byte.
//
// In: who wants them, what the root sends, what the others have stored, losses. Out:
// GiveParameters, StateChunks, evictions.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "base/messages.h"
#include "base/result.h"
#include "coordinator/job/context.h"

namespace lockstep::coordinator {

class InitialBroadcast {
 public:
  explicit InitialBroadcast(Job* job) : job_(job), window_(job->start.given_under_way) {}

  // All members in state kForming get them, except the root. Once. Once.
  void Begin();
  // Instead of Begin: those that are live have kept them.
  void GoOnWithHolders();
  // The worker has come while the first round is open. A second call has no effect.
  void Want(const Member& newcomer);
  // The first round is committed, or the job ends: who has them has changed them, or is about to.
  void End();
  Status OnGiven(Member& from, msg::Given message);
  Status OnCheckpointTaken(Member& from, const msg::CheckpointTaken& message);
  void OnOut(const MemberId& member);
  void Tick();
  void CheckInvariants() const;

  bool used() const { return used_; }  // begun
  // A member lacks some of them.
  bool busy() const { return root_.has_value(); }
  // The member has all of them: it is the root, or has stored the last byte.
  bool HasAll(const MemberId& member) const;
  // A text for people; empty: nobody lacks any.
  std::string Waiting() const;

 private:
  // taken <= sent: bytes of all givings together, as the receiver counts them.
  struct Receiver {
    std::uint64_t sent = 0;
    std::uint64_t taken = 0;
    Time moved;  // when it took more last, or began to lack something
    bool wants = false;
    bool now = false;  // it wants them and takes part in this giving
    bool has_all = false;
  };
  std::uint64_t Total() const { return job_->agreed().parameter_count * sizeof(float); }
  // A giving begins, with whoever wants them now and is not out.
  void Choose();
  void Allow(std::uint64_t upto);
  // Lets the root go on as far as the slowest receiver allows, and ends when all is everywhere.
  void GoOn();

  Job* job_;
  const std::uint64_t window_;  // bytes under way from the root, and to each receiver
  bool used_ = false;
  bool completed_ = false;                  // before the first round: all who were there have them
  std::map<MemberId, Receiver> receivers_;  // at most one for each slot
  std::uint32_t broadcast_ = 0;             // the number of this one
  std::optional<MemberId> root_;
  std::uint64_t allowed_ = 0;   // bytes that may be sent in it
  std::uint64_t received_ = 0;  // of these: received_ <= allowed_ <= Total()
  Time moved_;                  // when something came last, or was allowed to
};

}  // namespace lockstep::coordinator
