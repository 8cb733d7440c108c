// The deaths of the coordinator's process, and what follows. It dies with the whole job, and a user
// resumes that from the last checkpoint. Or it dies alone, and the next one goes on from the
// journal, with the workers that reattach.
#pragma once

#include <optional>
#include <vector>

#include "base/time.h"
#include "coordinator/core/coordinator.h"
#include "tools/simulate/simulation.h"

namespace lockstep::simulate {

// A worker whose coordinator is gone keeps its parameters and looks for the next one
// (job.coordinator_timeout). Else it ends, and a death of the coordinator is one of the job.
bool Reattaches(const coordinator::StartParameters& start);

// It decides whether and when; Simulation has the coordinator itself.
class Simulation::CoordinatorDeaths {
 public:
  explicit CoordinatorDeaths(Simulation* simulation) : simulation_(simulation) {}

  // There is no coordinator now.
  bool down() const { return down_; }
  // When the next one takes over; nullopt: none does.
  const std::optional<Time>& next() const { return next_; }

  // As the coordinator's program keeps its journal. False: its process has died within the write,
  // and carries out no action of this step.
  bool Note(const coordinator::JournalEntry& entry);
  // Of a closed round. After false it writes nothing more, and dies at the end of the step.
  bool Append(const coordinator::RoundRecord& record);
  bool dies() const { return dies_after_.has_value(); }
  void AfterStep();
  void OnLastCommit(RoundId round) { last_commit_ = round; }

  // All processes end, and a user resumes the job `length` later. Without a checkpoint from which
  // it can go on, nothing happens.
  void EndJob(Duration length);
  // The next coordinator takes over `length` later.
  void DieAlone(Duration length);
  // The same, once the next line of that file is being written; not before the first entry is
  // noted.
  void DieWithin(JobFiles::File file, Duration length);
  // The same as DieAlone, and a bit of that file changes.
  void DieAndFlip(JobFiles::File file, Duration length);
  bool journal_cut() const { return journal_cut_; }
  // The coordinator has ended itself for the next one, which takes over at once.
  void HandOver();

 private:
  bool MayDieAlone() const;
  // Of the last commit of a job that was asked to end no entry tells.
  bool TellsOfAll() const;
  void Keep(const coordinator::JournalEntry& entry);
  void Resume();
  void TakeOver();
  JobFiles::Read ReadFiles(bool reattach);
  // `read`: from a file of which one bit had changed. True: the job goes on with that.
  bool GoesOnWith(const JobFiles::Read& read);

  Simulation* const simulation_;
  bool down_ = false;
  std::optional<Time> next_;
  std::vector<coordinator::JournalEntry> journal_;
  bool taking_over_ = false;  // and does not know yet from where it goes on
  std::optional<RoundId> last_commit_;
  struct Torn {
    JobFiles::File file;
    Duration length;
  };
  std::optional<Torn> torn_;            // the next line of it
  std::optional<Duration> dies_after_;  // this step; it lasts so long
  std::optional<JobFiles::File> flip_;  // when the next one starts
  bool journal_cut_ = false;
};

}  // namespace lockstep::simulate
