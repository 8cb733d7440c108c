// What a closed round leaves behind: its record, and what it tells about stragglers.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "coordinator/core/context.h"
#include "coordinator/record/records.h"
#include "coordinator/round/committed_round.h"

namespace lockstep::coordinator {

// `follows`: what was left out will be served again.
RoundRecord MakeRecord(const Job& job, const CommittedRound& round,
                       std::optional<DigestRecord> digest, bool follows);

// Samples that another worker computed than the one that they were planned for. `moves`: of one
// round, in their order.
std::uint64_t SamplesMoved(const std::vector<MoveRecord>& moves);

// Adds the closed round to the job's totals and to the members' statistics: who contributed, who
// blocked the others, and how much longer waiting for all would have taken.
void NoteRound(const CommittedRound& round, const RoundRecord& record, Job* job);

}  // namespace lockstep::coordinator
