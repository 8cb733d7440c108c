#include "coordinator/shell/read_for_resume.h"

#include <fmt/format.h>

#include <utility>

#include "coordinator/core/resume_rules.h"

namespace lockstep::coordinator {
namespace {

// What the workers hold is all that the job needs, so a checkpoint that is damaged keeps nobody
// from going on with them.
Result<JobOnDisk> ReadForReattach(RunDirectory& directory, const CheckpointStore& checkpoints,
                                  const JournalFile::Contents* followed) {
  JobOnDisk resumed;
  auto journal = followed != nullptr ? *followed : JournalFile::Read(directory.path());
  if (!journal) return journal.error();
  resumed.journal = *std::move(journal);
  const auto& entries = resumed.journal.entries;
  if (auto ended = directory.ReadFile("summary.json"); ended.ok()) {
    return Error{ErrorCode::kInvalid,
                 fmt::format("--reattach: the job of {} has ended (summary.json); --resume goes on "
                             "from its newest checkpoint",
                             directory.path().string())};
  }
  if (Status complete = directory.Complete(entries); !complete) return complete.error();
  auto newest = checkpoints.Newest();
  if (!newest && entries.empty()) return newest.error();
  if (!newest) {
    resumed.warning = fmt::format(
        "{}; this job goes on without it, from what its workers hold, but could not be resumed "
        "from it",
        newest.error().message);
  } else if (*newest) {
    resumed.checkpoint = **std::move(newest);
  }
  if (entries.empty()) return resumed;
  auto kept = directory.KeepOf(entries.back().state);
  if (!kept) return kept.error();
  resumed.records = *std::move(kept);
  return resumed;
}

}  // namespace

Result<JobOnDisk> ReadForResume(RunDirectory& directory, const CheckpointStore& checkpoints,
                                const JobSection& job, bool reattach,
                                const JournalFile::Contents* followed) {
  if (reattach) {
    auto resumed = ReadForReattach(directory, checkpoints, followed);
    // A job that has noted nothing and saved nothing begins anew.
    if (!resumed || !resumed->journal.entries.empty() || !resumed->checkpoint) return resumed;
  }
  auto newest = checkpoints.Newest();
  if (!newest) return newest.error();
  if (!*newest) {
    return Error{ErrorCode::kNotFound,
                 fmt::format("--resume: {} holds no checkpoint", directory.checkpoints().string())};
  }
  JobState& state = (*newest)->state;
  Totals& totals = state.totals;
  // JobStateFromJson has seen that these go together.
  const std::uint64_t skipped = SettledSamples(state.sampler) - totals.samples_counted;
  const bool ended = IsAtEnd(state, job);
  auto kept = directory.Keep(state.next_round, totals.samples_counted, skipped, ended);
  if (!kept) return kept.error();
  // Samples that a finished job dropped at its end come again: there was no further round for them,
  // and now there is.
  if (!ended) {
    totals.samples_dropped = skipped;
    totals.samples_requeued = kept->requeued;
  }
  JobOnDisk resumed;
  resumed.checkpoint = std::move(**newest);
  resumed.records = std::move(*kept);
  if (auto journal = JournalFile::Read(directory.path())) {
    resumed.journal.run_id = std::move(journal->run_id);
  }
  return resumed;
}

}  // namespace lockstep::coordinator
