// The job's end: the last evaluation and checkpoint are awaited, then everybody is told to finish
// and says what its parameters are.
//
// In: that all rounds are closed, Final, the time. Out: Finish to all, and JobFinished as the last
// action. The job has completed only if the last checkpoint is on disk and no two members end with
// different parameters without a majority for one of them (I1).
//
// Invariants: begun before finishing before finished; each of them happens once. Each wait has a
// deadline (I6): for copies one time-out, for digests what reading the parameters takes.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/messages.h"
#include "base/result.h"
#include "coordinator/core/checkpointer.h"
#include "coordinator/core/evaluation.h"
#include "coordinator/job/context.h"
#include "coordinator/job/job_state.h"
#include "coordinator/round/pipeline.h"
#include "coordinator/round/sampler.h"

namespace lockstep::coordinator {

class Ending {
 public:
  Ending(Job* job, Pipeline* rounds, Evaluation* evaluation, Checkpointer* checkpointer)
      : job_(job), rounds_(rounds), evaluation_(evaluation), checkpointer_(checkpointer) {}

  // Before Begin, where an earlier coordinator committed the last round. `last` is the state after
  // it; a checkpoint and an evaluation of it are made unless they are there. `plan` is of the round
  // that does not follow.
  void GoOnFrom(const JobState& last, const Plan& plan);
  // Called when all rounds are closed. `early`: there would have been more.
  void Begin(JobOutcome outcome, bool early, std::string reason);
  Status OnFinal(Member& from, const msg::Final& message);
  void Advance();
  // The last commit is sent once more, with a checkpoint writer that is there.
  void SendLastAgain();
  Time NextDeadline() const;
  // Names in words what the end waits for; empty: it has not begun, or nothing is missing.
  std::string Waiting() const;

  // Now, without waiting for anybody.
  void Finish(JobOutcome outcome, const std::string& reason);
  // The same, but nobody is told: the job goes on with the next coordinator.
  void HandOver(const std::string& reason);

 private:
  // The last commit, or what of it is known here; null: there is none.
  const msg::Commit* Last() const;
  void AskForCheckpoint();
  void SendLastState(std::uint32_t evaluation);
  void SayFinish(const std::string& reason, bool failed, bool early);
  // A member that was behind is copying the job's final state.
  bool OthersCatchUp() const;
  bool CatchesUp(const Member& member) const;
  bool Agree(std::string* digest, std::vector<WorkerId>* differ) const;

  Job* job_;
  Pipeline* rounds_;
  Evaluation* evaluation_;
  Checkpointer* checkpointer_;
  // The job's outcome, unless something goes wrong before the end.
  JobOutcome outcome_ = JobOutcome::kCompleted;
  bool early_ = false;
  std::string reason_;
  bool begun_ = false;
  bool finishing_ = false;  // Finish is sent
  Time deadline_;
  Time copied_by_ = kNever;  // who has not copied the last parameters by then ends without
  struct Before {
    msg::Commit commit;  // its round, epoch and update alone
    Sampler after;
    Plan plan;  // of the round that does not follow
  };
  std::optional<Before> before_;
  std::map<MemberId, std::string> digests_;  // of the parameters after the last round
};

}  // namespace lockstep::coordinator
