// Coming back: the state is copied from donors in turn, bucket by bucket, and each bucket then
// follows the sums of the rounds after its copy, until all are level. A version counts applied
// rounds: version v is the state before round v. Until round v is committed, round v - 1 may get
// another attempt, so each bucket remembers which attempt at its last round it contains.
//
// In: the order to catch up and from whom, what the donor answers, fetches that end, rounds that
// were applied. Out: StateWant, StateTaken, fetches, Copied. Which round is applied next, and that
// this worker is level, is decided out of what is said here (replicated_updates.cc).
//
// Invariants: a bucket is never ahead of the donor nor behind the next round for long: its version
// is none, next() or later. One copy is under way at a time, of a bucket that is behind next().
#pragma once

#include <optional>
#include <vector>

#include "worker/core/fetcher.h"
#include "worker/core/peers.h"

namespace lockstep::worker {

// An example. Round 7 is open, a joiner is to catch up from round 7 on. It copies bucket 0, which
// the donor gives at version 7, and bucket 1, which the donor gives at version 8, for round 7 was
// applied there meanwhile. The sums of round 7 come: they are applied to bucket 0 alone. Now both
// are at version 8, and the joiner is level, with round 7 as its last one.
class CatchUpJob {
 public:
  CatchUpJob(Context& context, Buffers& buffers, Fetcher& fetcher, const Peers& peers)
      : context_(context), buffers_(buffers), fetcher_(fetcher), peers_(peers) {}

  // All that was copied before is forgotten.
  void Begin(const msg::CatchUp& order);
  // The same with the donors known, from another round on: what was worked in of it was replaced.
  void Restart(RoundId open_round);
  void End();
  bool active() const { return active_; }
  std::size_t buckets_copied() const;             // at least once, and not lost since
  std::uint32_t order() const { return order_; }  // the last one, also when it is over; 0: none
  RoundId open_round() const { return open_round_; }

  // The first round whose sums are not worked in.
  RoundId next() const { return next_; }
  bool At(std::uint32_t bucket, RoundId round) const { return IsAt(versions_[bucket], round); }
  bool AnyAt(RoundId round) const;
  // A copy under way may need this round's sums.
  bool NeededByCopy(RoundId round) const;
  // The round is being applied to the buckets at it. A copy from before it that lands meanwhile
  // would pass for one of them, so it is given up.
  void BeginApply(RoundId round) {
    if (NeededByCopy(round)) Abandon();
  }
  // The round is worked in (`attempt` at it was applied to the buckets at it, or there were none);
  // a copy that would have needed it is done again.
  void Advance(Attempt attempt);
  // Its application failed: the buckets at it are copied anew.
  void Lose(RoundId round);
  // `attempt` at the round is committed. True when buckets contain an older one.
  bool ContainsOlder(RoundId round, Attempt attempt) const;
  // And those buckets are copied anew.
  void LoseOlder(RoundId round, Attempt attempt);
  // The round that all buckets are at, and the attempt at the one before that they contain, once
  // all are. Those that contain an older attempt than others do are copied anew.
  struct State {
    RoundId next;
    Attempt attempt;
  };
  std::optional<State> LevelAt();

  // An error: the peer said what cannot be. `gone` is set when no donor can help.
  Status OnStateReady(const MemberId& peer, const StateReady& ready, bool& gone);
  void OnFetchDone(const Fetcher::Done& done);
  void OnPeerDown(const MemberId& peer);
  // Asks for the next bucket. `quiet`: nobody reads or writes the state.
  void Update(bool quiet);

  void CheckInvariants() const;

 private:
  struct Version {
    std::uint64_t value = 0;
    Attempt attempt;  // at round value - 1
  };
  // The state before this very round, whatever attempt at the round before it that contains.
  static bool IsAt(const std::optional<Version>& version, RoundId round) {
    return version && version->value == round.value;
  }
  // Asked for until it has a tag, which the donor's answer gives it; then being fetched.
  struct Copy {
    MemberId from;
    std::uint32_t bucket = 0;
    std::uint64_t version = 0;         // until it has a tag: at least
    Attempt attempt;                   // at round version - 1, as the donor has it
    std::optional<std::uint32_t> tag;  // of the donor's copy
    std::uint64_t missing = 0;         // floats, of all state tensors
    std::uint64_t untold = 0;          // that came since the coordinator heard of it
  };
  void Abandon();
  void TellCopied();
  // That is asked for the next bucket; null: none is reached.
  const MemberId* NextDonor();

  Context& context_;
  Buffers& buffers_;
  Fetcher& fetcher_;
  const Peers& peers_;
  bool active_ = false;
  // Those that were named cannot help; the coordinator was told, and names another with a new
  // order.
  bool waits_for_donor_ = false;
  std::uint32_t order_ = 0;       // of the coordinator; what is said of an older one is void there
  std::vector<MemberId> donors_;  // in turn; those that cannot help are taken out
  std::size_t turn_ = 0;
  RoundId open_round_;
  RoundId next_;
  std::vector<std::optional<Version>> versions_;  // by bucket
  std::optional<Copy> copy_;
};

}  // namespace lockstep::worker
