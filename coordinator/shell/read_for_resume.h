// Reads a run directory whose job goes on: checkpoint, journal and records, each checked, and all
// of them together. Control thread only.
#pragma once

#include <optional>
#include <string>

#include "base/job_config.h"
#include "base/result.h"
#include "coordinator/checkpoint/checkpoint_store.h"
#include "coordinator/journal/journal.h"
#include "coordinator/record/run_directory.h"

namespace lockstep::coordinator {

struct JobOnDisk {
  std::optional<CheckpointStore::Loaded> checkpoint;
  // Without entries where the job goes on from the checkpoint.
  JournalFile::Contents journal;
  RunDirectory::Kept records;
  // One line for people, of a file that is damaged and not needed; empty: none is.
  std::string warning;
};

// `reattach`: the job's workers may be there still, with the parameters that they hold. Else the
// job goes on from its newest checkpoint. `followed`: the journal that a standby has followed;
// null: that of the directory. Nothing is changed but rounds.jsonl, which gets the records that the
// journal alone has, and whose last line goes if it was cut off. kInvalid, kNotFound: one line with
// the file and what is wrong with it.
Result<JobOnDisk> ReadForResume(RunDirectory& directory, const CheckpointStore& checkpoints,
                                const JobSection& job, bool reattach,
                                const JournalFile::Contents* followed);

}  // namespace lockstep::coordinator
