// Which rounds live, and what belongs to each of them alone.
//
// A round is planned: its units are computed and announced. It is committed: its sums are made,
// taken and applied, perhaps in several attempts. It is closed by the commit of the round after it:
// no attempt at it will be made, so nobody needs its contributions. Of its sums those that this
// worker has made are kept for workers that are late (RoundSums::KeepOwnOnly). Then it goes, and
// all that is its own goes with it: that is what Prune does, and nothing else drops a round.
//
// Contributions are not in here, though they belong to rounds. Those of this worker (own_work.h)
// are not, because the compute thread may still be in the buffer of a round that is gone. Relaxed
// work also moves on from round to round. Those of others (inputs.h) are not, because they live as
// long as their staging buffer is theirs. They learn of the round that they moved to only when they
// are announced for it. Both ask here what their round's plan, owners and commit are, and keep no
// copy of it.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "worker/core/context.h"

namespace lockstep::worker {

class RoundSums;

// The units of a round that this worker is to compute and has not begun.
struct GivenUnits {
  Epoch epoch;
  std::vector<Unit> units;
  PartIndex first_part;  // the parts before it are used up: they were sealed, and fenced since
  RoundId base;          // the round in which it was given; an earlier one if it was carried over
  bool relaxed = false;
  float local_rate = 0;
  double position = 0;  // of the schedule
  RunLimit runs;
  std::optional<Unit> audit;  // is computed first, and counts for nothing
  bool audits_first = false;  // the first of the units is audited
  // All that was computed of the round is void: a new beginning waits for units to be assigned.
  bool fenced = false;
};

struct Round {
  Round();
  ~Round();

  // Nothing that was computed for a plan of another attempt counts. None: the round is known by its
  // commit alone.
  std::optional<Attempt> plan;
  std::optional<Epoch> epoch;  // by the newest plan
  // Those of the commit once there is one, until then the newest that were named. Always there once
  // the round is planned or committed.
  std::optional<OwnerMap> owners;
  std::optional<GivenUnits> given;
  std::uint8_t parts_used = 0;  // of this worker, sealed for this plan, whatever became of them
  // The attempt that was committed last; null while the round is open.
  std::unique_ptr<RoundSums> sums;
  // By owner, cut when it is asked for. Of `owners`.
  std::map<MemberId, std::vector<Slice>> shards;
};

// Invariants: a round that is closed is here for its sums alone; one that has sums is before
// expected(). One that has units has a plan; one that has a plan or sums has owners, and with sums
// those of their commit.
class LiveRounds {
 public:
  explicit LiveRounds(Context& context);
  ~LiveRounds();

  // The first round that no commit was seen of. It goes back when a round is opened again, and to
  // the open round when this worker catches up.
  RoundId expected() const { return expected_; }
  void Expect(RoundId round) { expected_ = round; }
  // All rounds before it are closed, for good.
  RoundId first_not_closed() const { return first_not_closed_; }
  // The commit of this round is followed: those before it are closed.
  void OnCommitted(RoundId round);

  // Of a round that is not known yet a new one.
  Round& At(RoundId round);
  Round* Find(RoundId round);
  RoundSums* SumsOf(RoundId round) const { return Get(round).sums.get(); }
  std::optional<Attempt> PlanOf(RoundId round) const { return Get(round).plan; }
  std::optional<Epoch> EpochOf(RoundId round) const;
  const OwnerMap* OwnersOf(RoundId round) const;
  void SetOwners(RoundId round, const OwnerMap& map);
  // Of a round whose owners are known.
  const std::vector<Slice>& Shard(RoundId round, const MemberId& owner);

  // Ascending. No round is added or taken away meanwhile.
  std::map<RoundId, Round>& all() { return rounds_; }
  const std::map<RoundId, Round>& all() const { return rounds_; }

  // The attempt at the round stands no longer: it is open again.
  void Reopen(RoundId round);
  void ReopenFrom(RoundId round);

  // Sums of the rounds before it are needed no longer, by this worker, which applied all before
  // `next`, nor by others.
  RoundId FirstKept(RoundId next) const;
  // Drops what is over, by `next`, the first round that is not applied.
  void Prune(RoundId next);

  void CheckInvariants() const;

 private:
  // One that is not here is as one of which nothing is known, so that what comes too late, or too
  // early, needs no case of its own anywhere.
  const Round& Get(RoundId round) const;

  Context& context_;
  RoundId expected_;
  RoundId first_not_closed_;
  std::map<RoundId, Round> rounds_;
};

}  // namespace lockstep::worker
