// How long a worker's units and runs take, learned from sealed parts and from runs that a round
// went on without. Shares are planned by this history, and stragglers found.
#pragma once

#include "base/ids.h"
#include "base/messages.h"
#include "base/time.h"
#include "coordinator/job/members.h"
#include "policies/policy.h"

namespace lockstep::coordinator {

// A worker's word counts as far as it can be true: its units were computed one after the other,
// since it was `given` the first and until `now`, by our clock. How long its units take says how
// long it is waited for (Liveness, flexrr): with times of its own choice it could stop and never be
// found out (I6). Where they lie is written into the record, whose readers take no time that no job
// has. What is out of place only because we know its clock no better is moved, not cut.
void BoundTimes(const ClockOffset& clock, Time given, Time now, msg::Sealed* sealed);

// Into the history of the worker that has sealed the part.
void NoteTimes(const msg::Sealed& sealed, Member* from);

// The round goes on without what the worker has in hand: the run ends later, and says so then.
void NoteUnfinishedRun(const policies::WorkerView& view, RoundId round, Members* members);
// It has ended that run, and `applied` the round, which takes as long as the first member took.
void NoteEndOfRun(RoundId applied, Time now, Duration application, Member* from);

}  // namespace lockstep::coordinator
