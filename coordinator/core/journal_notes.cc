#include "coordinator/core/journal_notes.h"

#include <algorithm>

#include "coordinator/core/from_round.h"

namespace lockstep::coordinator {

void JournalNotes::OnBegin(JobState state) {
  Note({.term = {}, .attempt = std::nullopt, .state = std::move(state), .record = nullptr});
}

// The round is not closed, and may get another attempt, of which there is another entry then. With
// the last one of a job nobody goes on; it tells which round a rescue file is of.
void JournalNotes::OnCommit(SamplerState after, bool last) {
  const CommittedRound& round = *rounds_->committed();
  JournalEntry entry;
  entry.attempt = round.commit().attempt;
  entry.state = checkpointer_->StateAfter(round.commit(), std::move(after));
  const ClosedRound as_closed{.round = round,
                              .digest = std::nullopt,
                              .follows = !last,
                              .epochs = entry.state.sampler.epoch.value};
  entry.record = std::make_shared<const RoundRecord>(MakeRecord(*job_, as_closed));
  AddTotals(*entry.record, as_closed.epochs, &entry.state.totals);
  if (last) entry.state.totals.samples_dropped += rounds_->sampler().given_back();
  Note(std::move(entry));
}

// Before anybody hears that it is decided, as the journal is written before a step's sends.
void JournalNotes::OnDecision() {
  const CommittedRound* round = rounds_->committed();
  if (round == nullptr || !round->decided() || !last_ || last_->decided) return;
  if (last_->attempt != round->commit().attempt ||
      last_->state.next_round != round->round().Next()) {
    return;
  }
  JournalEntry entry = *last_;
  entry.decided = true;
  Note(std::move(entry));
}

void JournalNotes::OnSlowdowns() {
  if (last_) Note(*last_);
}

void JournalNotes::OnLevel(WorkerId worker) {
  if (last_ && !std::ranges::binary_search(last_->members, worker)) Note(*last_);
}

void JournalNotes::OnAudits() {
  if (last_ && last_->wrong_devices.size() < job_->wrong_devices().size()) Note(*last_);
}

void JournalNotes::Note(JournalEntry entry) {
  entry.term = job_->start.term;
  entry.policy = policy_;
  entry.slowdowns = slowdowns_->Asked();
  entry.audit = rounds_->audits();
  entry.wrong_devices = job_->wrong_devices();
  entry.members.clear();
  for (const Member& member : job_->members.all()) {
    // A newcomer that is not ready may never be.
    if (!member.connected() || member.state == MemberState::kJoining) continue;
    if (member.state != MemberState::kReady) entry.members.push_back(member.id.worker);
  }
  last_ = std::make_shared<const JournalEntry>(std::move(entry));
  job_->Emit(Journal{last_});
}

}  // namespace lockstep::coordinator
