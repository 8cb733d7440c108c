// Workers whose programs do something else for a while (validate, save, compile), have said so, and
// for how long at most. They stay in the job and are not lost for making no progress; where work
// moves they have no units and own nothing from the next plan on, as long as somebody else is
// there. What of the open round they have in hand is the policy's to wait for or to have computed
// by others; whoever cannot apply a round meanwhile is put behind, and copies the parameters when
// it is back.
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

  // Said again it takes the place of what was said before.
  Status OnAway(Member& from, const msg::Away& message);
  // Of somebody whose time was up it says nothing new.
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
