// The sums of all committed rounds: takes each commit, message, fetch and operation to the attempt
// that it is of (round_sums.h). It answers for rounds of which nothing is known.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>

#include "worker/core/live_rounds.h"
#include "worker/core/round_sums.h"

namespace lockstep::worker {

// Messages of peers name (term, round, attempt). A message of another term, or of an attempt that
// is not the one that stands, is answered as what it is, late or early. It is remembered where an
// owner was quicker than the coordinator, else dropped, and never taken for the attempt that
// stands.
class Sums {
 public:
  Sums(Context& context, Buffers& buffers, Fetcher& fetcher, const Peers& peers, LiveRounds& rounds,
       Inputs& inputs, const OwnWork& own)
      : with_{context, buffers, fetcher, peers, inputs, own, heard_},
        context_(context),
        rounds_(rounds) {}
  Sums(const Sums&) = delete;
  Sums& operator=(const Sums&) = delete;

  // False when this attempt is known already, or an older one than is known. The same commit may
  // come again with another writer of the checkpoint.
  bool OnCommit(const msg::Commit& commit);
  // The commit is known already.
  void OnTakeSums(const msg::TakeSums& take);
  void OnFenceAttempt(const msg::FenceAttempt& fence);
  // True when this worker stands in for the owner: slices of other shards are wanted by now.
  bool OnHedge(const msg::Hedge& hedge);
  // An error: the peer said what cannot be.
  Status OnSumReady(const MemberId& peer, const SumReady& ready, std::span<const std::byte> floats);
  void OnSumWant(const MemberId& peer, const SumWant& want);
  void OnFetchDone(const Fetcher::Done& done);
  void OnDropped(const Want& want);
  void OnPeerUp(const MemberId& peer);
  void OnPeerDown(const MemberId& peer);
  // True when the operation was of the sums.
  bool OnOpDone(const event::OpDone& done);
  // Nothing that was said of the rounds before it is needed.
  void ForgetBefore(RoundId round);
  void Update();
  std::size_t heard() const { return heard_.size(); }
  void CheckInvariants() const { heard_.CheckInvariants(); }

  bool MayApply(RoundId round) const;
  // A closed round's shards cannot be had any more: why.
  std::optional<std::string> Lost(RoundId round) const;
  // Shards are read out of this peer's memory.
  bool Reads(const MemberId& peer) const;
  // Names, for people, what the round's update waits for.
  std::string Missing(RoundId round) const;
  std::optional<BufferRange> FindPiece(const PieceName& piece) const;

 private:
  // Of this very attempt; null when it is not the one that is known.
  RoundSums* Find(RoundId round, Attempt attempt) const;

  const SumsContext with_;
  Context& context_;
  LiveRounds& rounds_;
  HeardSums heard_;
};

}  // namespace lockstep::worker
