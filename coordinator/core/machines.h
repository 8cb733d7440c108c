// The coordinator's machines put together: who gets which event, and in which order they act.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "coordinator/core/checkpointer.h"
#include "coordinator/core/context.h"
#include "coordinator/core/coordinator.h"
#include "coordinator/core/ending.h"
#include "coordinator/core/evaluation.h"
#include "coordinator/membership/admission.h"
#include "coordinator/membership/draining.h"
#include "coordinator/membership/formation.h"
#include "coordinator/membership/joining.h"
#include "coordinator/membership/liveness.h"
#include "coordinator/membership/relinking.h"
#include "coordinator/membership/slowdowns.h"
#include "coordinator/membership/state_streams.h"
#include "coordinator/round/pipeline.h"

namespace lockstep::coordinator {

std::uint32_t UnitsPerRound(const StartParameters& start);

struct Coordinator::Machines {
  Machines(StartParameters start, policies::Policy policy, std::uint32_t min_workers);

  void Step(Event event);
  void On(Connected event) { admission.OnConnected(event.connection, std::move(event.address)); }
  void On(const Disconnected& event);
  void On(Received event);
  void On(const TimerFired&) {}
  void On(const StopRequested& event);
  void On(const SlowdownRequested& event) { Reply(slowdowns.Request(event.lines)); }
  void On(const PolicyRequested& event) { Reply(RequestPolicy(event.name)); }
  void On(const DrainRequested& event) { Reply(draining.Request(event.worker)); }
  void On(const CheckpointSaved& event) { checkpointer.OnSaved(event.round, event.error); }

  Pipeline::Hooks MakeHooks();
  void Reply(const Result<std::string>& outcome);
  Result<std::string> RequestPolicy(const std::string& name);
  void ExchangePolicy();
  lockstep::Status Dispatch(Member& from, FromWorker message);
  void Settle();
  void Drain();
  // Nobody is live, but somebody that copied may be level and not have been heard yet: then nothing
  // is decided until it is, for a bounded time. Without anybody the job fails.
  bool AwaitsLevel();
  void Remove(const Leaving& leaving);
  void BeginTraining();
  void StartRounds();
  // Nothing is lost by the end of a resumed job that has not closed a round. So it does not wait
  // for its quorum for ever, but as long as a start does: job.join_timeout.
  void EndIfShort();
  Time ShortUntil() const;
  void NoteSpeed(const RoundRecord& record);
  Time NextDeadline() const;

  Job job;
  Admission admission;
  Formation formation;
  Pipeline rounds;
  StateStreams streams;
  Joining joining;
  Relinking relinking;
  Liveness liveness;
  Evaluation evaluation;
  Checkpointer checkpointer;
  Ending ending;
  Slowdowns slowdowns;
  Draining draining;

  std::optional<policies::Policy> next_policy;  // from the next plan on
  std::optional<Time> short_since;              // see EndIfShort
  std::optional<Time> nobody_live_since;        // see AwaitsLevel
  bool stopping = false;
  std::string stop_reason;
  Time timer = kNever;  // in the shell's time
  Time reading_until;   // after a stop of this process: nobody is judged before
  double samples_per_second = 0;
  double last_commit = 0;
  std::string reason;  // of the last closed round
  std::uint32_t contributors = 0;
  std::uint32_t excluded = 0;
};

}  // namespace lockstep::coordinator
