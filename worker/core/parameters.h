// The worth of this worker's parameters, and the update that is under way on them. The values are
// the shell's; here it stands which round they are after.
//
// Decides nothing: it holds each change to the rules below, so that no part of the core can leave
// two of these facts apart.
//
//   not started --Start--> level <--all copies are at one round-- catching up
//        `----Start------> behind <--what is needed is lost------------'  ^
//                  ^         `------------------CatchUp-------------------'
//                  `-- level
//
// Invariants:
//   I1  while level, the parameters are those before round next(), bit for bit as everywhere, and
//       the newest round in them, if it is known, is the one before. In any other state nobody may
//       take them for anything.
//   -   one update at a time. It cannot be stopped in its midst: where its result is wanted no
//       longer it is abandoned, and whoever copies afterwards writes over it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/ids.h"

namespace lockstep::worker {

class Parameters {
 public:
  enum class Standing : std::uint8_t {
    // Nothing yet. Peers are reached, a checkpoint is stored. Start ends it: with the seed's state
    // or a checkpoint's this worker is level, without one it is behind.
    kNotStarted,
    // Only a worker that is level computes, applies in order, gives its state to joiners and takes
    // part in checkpoints.
    kLevel,
    // They are doubtful or too old, and the coordinator was told. This worker still serves what it
    // has, its contributions and sums, and follows no commit. CatchUp ends it.
    kBehind,
    // They are being copied from a donor, bucket by bucket. Commits are followed, because their
    // sums are what the copies lack. It ends as level, or, where sums were missed, as behind again.
    kCatching,
  };
  // While there is one, nothing else reads or writes the parameters.
  struct Update {
    std::uint64_t op = 0;
    RoundId round;
    Attempt attempt;
    bool abandoned = false;  // the state is doubtful since: it will be copied anew
  };
  // The last round in them, however it came there.
  struct Newest {
    RoundId round;
    Attempt attempt;
    std::optional<MemberId> writer = std::nullopt;  // that was asked last for its checkpoint
  };

  Standing standing() const { return standing_; }
  bool started() const { return standing_ != Standing::kNotStarted; }
  bool level() const { return standing_ == Standing::kLevel; }
  bool behind() const { return standing_ == Standing::kBehind; }
  bool catching_up() const { return standing_ == Standing::kCatching; }
  // Commits are taken note of.
  bool follows() const { return level() || catching_up(); }
  // The first round that is not applied; when not level, that was not when they last were.
  RoundId next() const { return next_; }
  // None: they are those of the start, or are not level.
  const std::optional<Newest>& newest() const { return newest_; }
  bool NewestIs(RoundId round) const { return newest_ && newest_->round == round; }
  const std::optional<Update>& update() const { return update_; }
  const std::string& behind_why() const { return behind_why_; }

  // `known`: the state before round `next` is there.
  void Start(RoundId next, bool known);
  void FallBehind(std::string why);
  void BeginCopies();
  // The copies are all at this round.
  void BecomeLevel(RoundId next, Attempt newest);
  void NameWriter(const MemberId& writer);

  void BeginUpdate(std::uint64_t op, RoundId round, Attempt attempt);
  // The operation has ended. Whether its round is in the parameters by that is not said.
  Update EndUpdate();
  // It is, while level.
  void OnApplied(const Newest& newest);

  void CheckInvariants() const;

 private:
  void Abandon() {
    if (update_) update_->abandoned = true;
    newest_.reset();
  }

  Standing standing_ = Standing::kNotStarted;
  RoundId next_;
  std::optional<Newest> newest_;
  std::optional<Update> update_;
  std::string behind_why_;
};

}  // namespace lockstep::worker
