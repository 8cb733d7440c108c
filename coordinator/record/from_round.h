// What a closed round leaves behind: its record, and what it tells about stragglers.
#pragma once

#include <optional>

#include "coordinator/core/context.h"
#include "coordinator/record/records.h"
#include "coordinator/round/pipeline.h"

namespace lockstep::coordinator {

// `follows`: what was left out will be served again.
RoundRecord MakeRecord(const Job& job, const ProvisionalRound& round,
                       std::optional<DigestRecord> digest, bool follows);

// Adds to the members' and the job's statistics: who contributed, who held the others up, and how
// much longer waiting for all would have taken.
void NoteRound(const ProvisionalRound& round, Job* job);

}  // namespace lockstep::coordinator
