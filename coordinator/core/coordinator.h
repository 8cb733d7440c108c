// The coordinator as a value: events and the time go in, actions come out. No I/O, no clock, no
// thread; the same code runs in the job, in the simulator and under the property tests.
//
// It consists of parts that each decide one thing (who is in, what a round is, when a checkpoint is
// valid) and share one context (Job). A part never calls another one from within a handler. Step
// hands the event to the parts that it concerns. Then all parts do what can be done now, until
// nobody was evicted or put behind by that.
//
// In: Step(now, event). Out: actions, in the order in which they have to be carried out.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/messages.h"
#include "base/result.h"
#include "base/time.h"
#include "coordinator/core/beginning.h"
#include "coordinator/core/checkpointer.h"
#include "coordinator/core/ending.h"
#include "coordinator/core/evaluation.h"
#include "coordinator/core/job_report.h"
#include "coordinator/core/journal_notes.h"
#include "coordinator/job/context.h"
#include "coordinator/job/records.h"
#include "coordinator/job/step_io.h"
#include "coordinator/membership/absences.h"
#include "coordinator/membership/admission.h"
#include "coordinator/membership/draining.h"
#include "coordinator/membership/formation.h"
#include "coordinator/membership/initial_broadcast.h"
#include "coordinator/membership/joining.h"
#include "coordinator/membership/liveness.h"
#include "coordinator/membership/relinking.h"
#include "coordinator/membership/slowdowns.h"
#include "coordinator/membership/state_streams.h"
#include "coordinator/round/pipeline.h"
#include "policies/policy.h"

namespace lockstep::coordinator {

class Coordinator {
 public:
  // Fails on a config that cannot work: unknown policy, min_workers > workers, and the like; one
  // line, for status 2.
  static Result<std::unique_ptr<Coordinator>> Make(StartParameters parameters);

  // The parts point at each other.
  Coordinator(const Coordinator&) = delete;
  Coordinator& operator=(const Coordinator&) = delete;

  // Appends to `out`. `now` never goes back. A message that cannot be right closes its connection.
  void Step(Time now, Event event, Actions* out);

  // Recounts what has to hold between two steps, in O(units of the live rounds). Tests, the
  // simulator and the fuzzer call it after each step; Step itself checks what costs nothing.
  void CheckInvariants() const;

  bool finished() const { return job_.phase() == Phase::kFinished; }
  // The status for the progress line and HTTP; costs O(members).
  JobStatus Status(Time now) const { return report_.Status(now); }
  // The paths between present workers, as measured when they connected; Members::MeasuredPaths.
  std::vector<PathRecord> MeasuredPaths() const { return job_.members.MeasuredPaths(); }
  // Returns the parameters and state that the workers have agreed on; the other fields are empty.
  // Checkpoints are described by it, since a single worker's Ready may be wrong.
  msg::Ready Agreed() const;
  // Lines for the log at start: each bounded container and the formula of its bound (I7).
  std::vector<std::string> Bounds() const { return BoundsInWords(job_.start, admission_.Bound()); }

 private:
  Coordinator(StartParameters start, policies::Policy policy, std::uint32_t min_workers);

  // --- what has happened
  void Dispatch(Event event);
  void OnDisconnected(const Disconnected& event);
  void OnReceived(Received event);
  void OnStopRequested(const StopRequested& event);
  void OnSlowdownRequested(const SlowdownRequested& event);
  lockstep::Status Dispatch(Member& from, msg::FromWorker message);
  lockstep::Status OnApplied(Member& from, const msg::Applied& message);
  void OnStopAsked(const Member& from, const msg::StopAsked& message);
  void Reply(const Result<std::string>& outcome);

  // --- what can be done now
  // The parts in their order, again while one of them has put somebody out.
  void AdvanceAll();
  // Carries out what the rounds decide.
  void AdvanceRounds();
  void Commit(CommitDraft draft);
  void CloseRound();
  // Members that are behind leave the rounds; evicted ones leave the job. The others are informed.
  void TakeOut();
  void TakeOut(const Leaving& leaving);
  // Nobody is live, but somebody that copied may be level and not have been heard yet: then nothing
  // is decided until it is, for a bounded time. Without anybody the job fails.
  bool AwaitsLevel();
  bool MayHandOver() const;
  void BeginTraining();
  void NoteBrokenLinks();
  // No job waits for its quorum longer than it was told to.
  void EndIfShort();
  Time ShortUntil() const;
  Time NextDeadline() const;

  Result<std::string> RequestPolicy(const std::string& name);
  void ReplacePolicy();

  // In the order in which they may rely on each other: a part is handed those before it and never
  // hears of those behind it. The coordinator itself decides what concerns several parts.
  Job job_;
  Admission admission_;
  Formation formation_;
  Pipeline rounds_;
  StateStreams streams_;
  InitialBroadcast initial_broadcast_;
  Joining joining_;
  Absences absences_;
  Relinking relinking_;
  Liveness liveness_;
  Evaluation evaluation_;
  Checkpointer checkpointer_;
  Ending ending_;
  Slowdowns slowdowns_;
  JournalNotes notes_;
  Beginning beginning_;
  Draining draining_;
  JobReport report_;

  // Asked for by an operator; takes the place of job_.policy() between a draft and its commit.
  std::optional<policies::Policy> next_policy_;
  std::string next_policy_name_;
  std::optional<Time> short_since_;        // see EndIfShort
  std::optional<Time> nobody_live_since_;  // see AwaitsLevel
  // The job is asked to stop, or the disk is full: the open round is the last one.
  bool stopping_ = false;
  bool asked_to_stop_ = false;                        // by a signal
  JobOutcome stop_outcome_ = JobOutcome::kCompleted;  // also of a job that is not stopped
  std::string stop_reason_;
  Time timer_ = kNever;  // in the shell's time
  Time reading_until_;   // after a stop of this process: nobody is judged before
  // The last stop that may have made workers leave, and until when their ends come in.
  Duration overslept_{};
  Time overslept_until_;
  bool left_over_it_ = false;  // somebody has, and no round has closed since
};

}  // namespace lockstep::coordinator
