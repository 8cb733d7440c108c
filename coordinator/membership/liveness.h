// Finds lost members by evidence: no message for liveness.timeout, or units of the open round
// without progress for much longer than they take. A run in hand that lasts as long is evidence
// too. The last one holds for members that are behind, too: a hung thread is found under every
// policy. Puts members behind that lack a closed round and do not get on. Pings make everybody say
// something, and measure the offsets of clocks.
//
// Slow is no evidence: a worker that takes ten times as long as it usually does, or as the median
// does, is the policy's affair. In: time, when each member was last heard and last got on, the open
// round's view of it, Pong. Out: evictions, members put behind, Pings, clock offsets.
#pragma once

#include "base/messages.h"
#include "base/result.h"
#include "coordinator/job/context.h"
#include "coordinator/round/round_work.h"

namespace lockstep::coordinator {

class Liveness {
 public:
  explicit Liveness(Job* job) : job_(job), next_(job->start.started) {}
  Status OnPong(Member& from, const msg::Pong& message);
  // True when a period has begun: look at everything that is looked at now and then.
  // `closed`: all rounds before it are closed.
  bool Tick(const RoundWork* open, RoundId closed);
  Time NextDeadline() const { return next_; }

 private:
  Duration PatienceWith(const Member& member, std::uint32_t units, Duration usual) const;
  void CheckRunInHand(Member& member, const msg::RunInHand& run);
  void CheckProgress(Member& member, const RoundWork& open, Duration usual);

  Job* job_;
  Time next_;  // when the next period begins; the others' slow checks go by these periods too
  bool ping_ = false;  // every second period
};

}  // namespace lockstep::coordinator
