// A coordinator that replaces one that is gone. It chooses the parameters, among those that workers
// hold, from which the job continues, and notes the state for the next one.
//
// In: the journal of the coordinator before (StartParameters), what workers say that they hold
// (Ready::held), commits. Out: the entry that the job goes on from; entries of its own.
//
// Invariants: of the entries that workers hold the newest stands, and whoever holds another one
// copies. An entry is noted before anybody hears of its commit, so no worker holds what no entry
// tells of.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "coordinator/job/context.h"
#include "coordinator/job/job_state.h"

namespace lockstep::coordinator {

class Reattachment {
 public:
  explicit Reattachment(Job* job) : job_(job) {}

  // There is a journal to go on from.
  bool begun_before() const { return !job_->start.journal.empty(); }
  // Of those that form: the newest entry that somebody holds; with optimizer.replicas, of which
  // each shard is held. Once; null: there is none.
  const JournalEntry* Choose();
  // After Choose: who holds each shard.
  std::vector<std::vector<MemberId>> Holders() const;
  // Of those that form: one that holds what is newer than all entries. So the standby that has
  // followed the journal has missed some.
  const Member* Beyond() const;
  // This one has what Choose has found.
  bool Holds(const Member& member) const;
  // That, and what it is worth, for people.
  std::string Words(std::uint32_t holders, std::uint32_t others) const;

 private:
  bool Holds(const Member& member, const JournalEntry& entry) const;
  std::vector<std::vector<MemberId>> HoldersOf(const JournalEntry& entry) const;

  Job* job_;
  const JournalEntry* chosen_ = nullptr;
};

}  // namespace lockstep::coordinator
