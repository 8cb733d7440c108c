// Makes the record of a closed round, and derives from it who the stragglers are.
#pragma once

#include <cstdint>
#include <vector>

#include "coordinator/job/context.h"
#include "coordinator/job/records.h"
#include "coordinator/round/pipeline.h"

namespace lockstep::coordinator {

RoundRecord MakeRecord(const Job& job, const ClosedRound& closed);

// Samples that another worker computed than the one that they were planned for. `moves`: of one
// round, in their order.
std::uint64_t SamplesMoved(const std::vector<MoveRecord>& moves);

// Adds this round to the job's totals; it must not be the last one.
void AddTotals(const RoundRecord& record, std::uint32_t epochs, Totals* totals);

// Adds the closed round to the job's account and to the members' statistics: who contributed, who
// blocked the others, and how much longer waiting for all would have taken. `times_of_data`: unit
// times have been found to belong to the data, so a worker of usual speed was late because of them.
void NoteRound(const ClosedRound& closed, const RoundRecord& record, bool times_of_data,
               ClosedAccount* account, Members* members);

}  // namespace lockstep::coordinator
