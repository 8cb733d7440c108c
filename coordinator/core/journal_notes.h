// Notes in the journal what the next coordinator needs, should this one die.
//
// In: commits, decisions, the members as they are, what is set at run time. Out: entries.
//
// Invariant: an entry is noted before anybody hears of what it tells.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "coordinator/core/checkpointer.h"
#include "coordinator/job/context.h"
#include "coordinator/job/job_state.h"
#include "coordinator/membership/slowdowns.h"
#include "coordinator/round/pipeline.h"

namespace lockstep::coordinator {

class JournalNotes {
 public:
  JournalNotes(Job* job, const Pipeline* rounds, const Checkpointer* checkpointer,
               const Slowdowns* slowdowns)
      : job_(job), rounds_(rounds), checkpointer_(checkpointer), slowdowns_(slowdowns) {}

  // The state before the first round of this coordinator.
  void OnBegin(JobState state);
  // `after`: the sampler's. `last`: of the job.
  void OnCommit(SamplerState after, bool last);
  // A decision may have been made about the round that was committed.
  void OnDecision();
  // A request has changed the slow-downs.
  void OnSlowdowns();
  // The worker has copied the state: the next coordinator waits for it, as it may be the only one
  // that is left with that.
  void OnLevel(WorkerId worker);
  // A worker may have been found that computes wrong gradients.
  void OnAudits();
  // Counts from the next entry on: the policy that was asked for at run time.
  void SetPolicy(std::string name) { policy_ = std::move(name); }

  // Null: there is none.
  const JournalEntry* last() const { return last_.get(); }

 private:
  void Note(JournalEntry entry);

  Job* job_;
  const Pipeline* rounds_;
  const Checkpointer* checkpointer_;
  const Slowdowns* slowdowns_;
  std::string policy_;
  std::shared_ptr<const JournalEntry> last_;
};

}  // namespace lockstep::coordinator
