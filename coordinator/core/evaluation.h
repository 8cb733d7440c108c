// The test set, evaluated in chunks by members that hold a snapshot of the round, beside training.
// One evaluation runs at a time.
//
// In: commits (is one due?), who has applied the round and so holds the snapshot, results. Out:
// Evaluate to members, EvaluationDone. Only evaluations of closed rounds are recorded. Until then a
// further attempt may replace the state, and the evaluation begins again under a new id.
#pragma once

#include <deque>
#include <optional>
#include <vector>

#include "base/messages.h"
#include "base/result.h"
#include "coordinator/job/context.h"
#include "coordinator/job/records.h"

namespace lockstep::coordinator {

class Evaluation {
 public:
  explicit Evaluation(Job* job) : job_(job) {}

  // At a commit, returns the id to put into it; 0: none. Only the last gives up a running one.
  std::uint32_t AtCommit(RoundId round, Epoch epoch, bool epoch_ended, bool last);
  // The member holds the snapshot if this is the round.
  void OnApplied(Member& member, RoundId round);
  void OnClosed(RoundId round);
  Status OnEvaluationResult(Member& from, const msg::EvaluationResult& message);
  void OnOut(const MemberId& member);
  // Chunks of members that are silent for long are given to others.
  void Tick();
  void GiveUp(const std::string& why);

  bool running() const { return current_.has_value(); }
  const std::optional<EvaluationRecord>& last() const { return last_; }
  // A resumed job has its last evaluation until there is another.
  void GoOnFrom(const std::optional<EvaluationRecord>& last) { last_ = last; }

  void CheckInvariants() const;

 private:
  // Invariant: counted once, when the first result for it comes. `asked` are those that were given
  // it in this attempt, `with` the last of them, if that one has not been out since.
  struct Chunk {
    explicit Chunk(const SampleRange& all) : range(all) {}
    SampleRange range;
    std::optional<MemberId> with;
    Time given;
    bool done = false;
    std::vector<MemberId> asked;
  };
  // Invariants: chunks are disjoint, ascending and cover the test set; `left` of them are not done;
  // holders are members that have applied the round and have not been out since.
  struct Current {
    std::uint32_t id = 0;  // of this attempt at it
    RoundId round;
    Epoch epoch;
    std::vector<Chunk> chunks;  // at most kChunksPerMember for each slot
    std::size_t next = 0;       // chunks before were given out once
    std::size_t left = 0;
    std::vector<MemberId> holders;
    bool closed = false;  // the round is
    double loss_sum = 0;
    std::uint64_t correct = 0;
  };
  void RecordIfPossible();
  void Give(Member& member);
  void GiveToIdle();
  void GiveIfIdle(Member& member);
  bool Busy(const MemberId& member) const;

  Job* job_;
  std::uint32_t ids_ = 0;  // never given twice: a late result names what it is of
  std::optional<Current> current_;
  std::optional<EvaluationRecord> last_;
};

}  // namespace lockstep::coordinator
