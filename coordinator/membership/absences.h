// Workers whose programs do something else for a while (validate, save, compile), have said so, and
// for how long at most. They stay in the job and are not lost for lack of progress. Where work
// moves, they get no units and own nothing from the next plan on, unless nobody else is there. The
// policy decides whether to wait for their units of the open round or to move them. A worker that
// cannot apply a round meanwhile is put behind, and copies the parameters when it is back.
//
// Decides when an absence ends: with Back, or when the time that was said is up; from then on the
// worker is judged as everybody. In: Away, Back, the time. Out: Member::absence.
#pragma once

#include "base/messages.h"
#include "base/result.h"
#include "coordinator/job/context.h"
#include "coordinator/membership/joining.h"
#include "coordinator/round/pipeline.h"

namespace lockstep::coordinator {

class Absences {
 public:
  Absences(Job* job, Pipeline* rounds, Joining* joining)
      : job_(job), rounds_(rounds), joining_(joining) {}

  // A second one replaces the first.
  Status OnAway(Member& from, const msg::Away& message);
  // After the time was up it has no effect.
  Status OnBack(Member& from, const msg::Back& message);
  void Advance();
  Time NextDeadline() const;
  void CheckInvariants() const;

 private:
  void End(Member& member);

  Job* job_;
  Pipeline* rounds_;
  Joining* joining_;
};

}  // namespace lockstep::coordinator
