// What a closed round leaves behind: its record, and what it tells about stragglers.
#pragma once

#include <optional>

#include "coordinator/core/context.h"
#include "coordinator/record/records.h"
#include "coordinator/round/committed_round.h"

namespace lockstep::coordinator {

// `follows`: what was left out will be served again.
RoundRecord MakeRecord(const Job& job, const CommittedRound& round,
                       std::optional<DigestRecord> digest, bool follows);

// Adds the closed round to the job's totals and to the members' statistics: who contributed, who
// blocked the others, and how much longer waiting for all would have taken.
void NoteRound(const CommittedRound& round, const RoundRecord& record, Job* job);

}  // namespace lockstep::coordinator
