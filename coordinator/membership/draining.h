// Workers that an operator asked to leave: they get no units and no shards from the next plan on.
// Once no round needs them, they are asked to go.
//
// Decides whether somebody may be asked (the job goes on without it) and when it is told. In: the
// request, after each event the rounds that stand. Out: Member::draining, AskToLeave.
#pragma once

#include <string>

#include "base/result.h"
#include "coordinator/job/context.h"
#include "coordinator/round/pipeline.h"

namespace lockstep::coordinator {

class Draining {
 public:
  Draining(Job* job, const Pipeline* rounds) : job_(job), rounds_(rounds) {}

  // Says in words what follows; an error: it cannot leave.
  Result<std::string> Request(WorkerId worker);
  // Tells those that nothing waits for.
  void Advance();

 private:
  bool Needed(const Member& member) const;

  Job* job_;
  const Pipeline* rounds_;
  bool any_asked_ = false;  // somebody drains who has not been told; Advance comes after each event
};

}  // namespace lockstep::coordinator
