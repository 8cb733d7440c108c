// Learns how long a worker's units and runs take, from sealed parts and from runs that a round went
// on without. Shares are planned by this history, and stragglers found.
#pragma once

#include "base/ids.h"
#include "base/messages.h"
#include "base/time.h"
#include "coordinator/job/members.h"
#include "coordinator/round/round_work.h"
#include "policies/policy.h"

namespace lockstep::coordinator {

// A worker's times are accepted only where they can be true. Its units were computed one after the
// other, after `given` and before `now` by our clock. Its unit times decide how long it is waited
// for (Liveness, flexrr): with invented times it could stop and never be found out (I6). The times
// are also written into the record, whose readers refuse impossible ones. Times that are off
// because of our estimate of its clock are moved, not cut.
void BoundTimes(const ClockOffset& clock, Time given, Time now, msg::Sealed* sealed);

// Adds the part's times to its worker's history, as those of usual units.
void NoteTimes(const msg::Sealed& sealed, const RoundWork& work, Member* from);

// The round goes on without what the worker has in hand: the run ends later, and says so then. If
// the units before that run took longer than usual, their pace counts.
void NoteUnfinishedRun(const policies::WorkerView& view, RoundId round, Members* members);
// The worker has ended that run and `applied` the round, which took the first member's time.
void NoteEndOfRun(RoundId applied, Time now, Duration application, Member* from);

}  // namespace lockstep::coordinator
