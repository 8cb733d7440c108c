// Checkpoints: a fast member streams its state after a round. The file becomes valid when all
// pieces have come, the round is closed, and a majority of the members reports the same digest for
// its own state. One checkpoint is made at a time. All members take that digest between two
// updates, in one pass over their state. That costs less than the writer's copy, and it confirms
// every byte of the file.
//
// In: commits (is one due?), pieces and digests from members, that the round is closed. Out: pieces
// to the run directory, SaveCheckpoint or DropCheckpoint. A checkpoint that a single worker sends,
// whatever it sends, is never believed: a writer that streams what no majority has is distrusted.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/digest.h"
#include "base/messages.h"
#include "base/result.h"
#include "coordinator/core/resume_rules.h"
#include "coordinator/job/context.h"
#include "coordinator/job/job_state.h"
#include "coordinator/round/sampler.h"

namespace lockstep::coordinator {

class Checkpointer {
 public:
  explicit Checkpointer(Job* job)
      : job_(job),
        settings_(SettingsToRemember(job->start.config)),
        sharded_(job->start.config.optimizer.Shards(job->start.workers) > 0) {}

  // Called before a commit is sent, or sent again. Returns its writer, if a checkpoint is due.
  // `after`: the sampler after the round.
  std::optional<MemberId> AtCommit(const msg::Commit& commit, const Sampler& after,
                                   bool epoch_ended, bool last);
  // The job's state after the commit, with the totals before it and without a digest.
  JobState StateAfter(const msg::Commit& commit, SamplerState after) const {
    return StateBefore(commit.round.Next(), commit.update, std::move(after));
  }
  // The same before a round, after so many updates.
  JobState StateBefore(RoundId next, std::uint64_t updates, SamplerState sampler) const;
  void OnClosed(RoundId round);
  Status OnStateChunk(Member& from, msg::StateChunk message);
  Status OnReplicaDigest(Member& from, const msg::ReplicaDigest& message);
  // `doubtful`: what it has written may not be what others have.
  void OnOut(const MemberId& member, bool doubtful);
  // The writer gathers what it is to write, and gets on.
  void OnCopied(const Member& from, const msg::Copied& message);
  void Tick();  // gives up a writer that does not write
  void OnSaved(RoundId round, const std::string& error);
  // An earlier coordinator has written it.
  void OnWritten(RoundId round) { decided_ = round; }

  // The state after `round` is saved, or cannot be.
  bool IsDecided(RoundId round) const { return decided_ == round; }
  // The error that kept the state after the decided round from being saved; empty: it is saved.
  const std::string& decided_error() const { return decided_error_; }
  bool running() const { return current_.has_value(); }
  // The member that writes the present checkpoint.
  std::optional<MemberId> writer() const {
    return current_ ? std::optional(current_->writer) : std::nullopt;
  }
  void GiveUp();

  void CheckInvariants() const;

 private:
  // Invariants: `digest` and `finite` are of the bytes that were handed on, in order, up to
  // (tensor, offset); votes are only of voters; saving only when closed, complete and confirmed. A
  // further attempt at the round makes another one of these.
  struct Current {
    JobState state;
    RoundId round;
    MemberId writer;
    bool closed = false;
    bool complete = false;
    bool saving = false;
    std::uint32_t tensor = 0;  // expected next
    std::uint64_t offset = 0;
    bool any = false;  // a piece has been handed on
    Time last_piece;   // or vote
    Attempt attempt;
    std::uint64_t copied = 0;      // by the writer, of others' state
    DigestStream digest;           // of what has come
    bool finite = true;            // no value that has come is infinite or none
    std::vector<MemberId> voters;  // ascending; who has told its digest or still may
    std::map<MemberId, Digest128> votes;
  };
  std::optional<MemberId> ChooseWriter(const msg::Commit& commit) const;
  void SaveIfPossible();
  // nullopt while too few have reported their digest.
  std::optional<Digest128> Confirmed();
  void NotKept(const std::string& why);
  void Drop();

  Job* job_;
  const std::map<std::string, std::string> settings_;
  // Nobody but the writer, which gathers it, ever has the whole state: there is nobody to confirm.
  const bool sharded_;
  Time begun_at_ = kNever;       // the last one, or the count of time to the first
  std::optional<Time> told_at_;  // the last one that was logged for people
  bool owed_ = false;            // one was due while another was under way
  // Members whose checkpoint was not kept, or did not come: others are asked first, and when all
  // have failed, there is none. There is at most one for each slot.
  std::set<MemberId> distrusted_;
  std::optional<Current> current_;
  // The newest one. A round's last commit may be sent again when it is closed, with a new writer.
  std::optional<RoundId> closed_;
  // The newest checkpoint of which it is known whether it is on disk, and what is wrong with it.
  // The job's end waits for that of its last round.
  std::optional<RoundId> decided_;
  std::string decided_error_;
};

}  // namespace lockstep::coordinator
