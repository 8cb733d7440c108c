// The begin of the rounds: from the seed, from a checkpoint, or from parameters that the workers of
// an earlier coordinator hold.
//
// In: the members that have formed, the checkpoint and the journal of StartParameters. Out: the
// first round; who copies the parameters; the journal's first entry of this coordinator.
//
// Invariant: all members that are live when the rounds begin have the same parameters.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "coordinator/core/checkpointer.h"
#include "coordinator/core/journal_notes.h"
#include "coordinator/core/reattachment.h"
#include "coordinator/job/context.h"
#include "coordinator/job/job_state.h"
#include "coordinator/job/records.h"
#include "coordinator/membership/initial_broadcast.h"
#include "coordinator/membership/joining.h"
#include "coordinator/membership/state_streams.h"
#include "coordinator/round/pipeline.h"

namespace lockstep::coordinator {

class Beginning {
 public:
  Beginning(Job* job, Pipeline* rounds, StateStreams* streams, InitialBroadcast* initial_broadcast,
            Joining* joining, const Checkpointer* checkpointer, JournalNotes* notes)
      : job_(job),
        reattachment_(job),
        rounds_(rounds),
        streams_(streams),
        initial_broadcast_(initial_broadcast),
        joining_(joining),
        checkpointer_(checkpointer),
        notes_(notes) {}

  // Of a standby that has missed entries: why another coordinator has to lead.
  std::optional<std::string> WhyNotToLead() const;
  // Once all have formed. Chooses the state from which the job continues where an earlier
  // coordinator has left a journal, and begins to send what nobody has. Returns the totals of that
  // state where they are not the ones of before. It may fail the job.
  std::optional<Totals> ChooseState();
  // Once all have the parameters; until then it does nothing.
  void StartRounds();
  // The job's last state, which workers hold: no round follows, and the coordinator that committed
  // it did not come to the end.
  struct LastHeld {
    JobState state;
    Plan plan;  // of the round that does not follow; nobody has units
  };
  const std::optional<LastHeld>& last_held() const { return last_held_; }
  // Of such a job the last checkpoint is written as well: it needs no workers any more.
  bool NothingIsLeft() const;

 private:
  std::optional<Totals> ChooseHeld();
  std::optional<Totals> BeginAnew();
  const char* NobodyHolds() const;
  StateSource FirstOnceMore();
  void TakeInOthers(std::uint32_t holders);
  void EndAtOnce(const JobState& state);
  void WarnOfNoCheckpoint();

  Job* job_;
  Reattachment reattachment_;
  Pipeline* rounds_;
  StateStreams* streams_;
  InitialBroadcast* initial_broadcast_;
  Joining* joining_;
  const Checkpointer* checkpointer_;
  JournalNotes* notes_;
  // That the job goes on from; null: none is, or nobody holds one.
  const JournalEntry* held_ = nullptr;
  std::optional<LastHeld> last_held_;
  std::optional<JobState> cut_to_;  // the records, once that state is noted
};

}  // namespace lockstep::coordinator
