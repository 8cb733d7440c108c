// The job's beginning: workers gather, connect to each other over one transport for the whole job.
//
// Decides when gathering ends: all are ready (of an earlier coordinator's job all that were in it),
// or the join timeout is over and job.min_workers are ready. Decides the job's transport, and
// whether all members reach each other over it; if not, it tries the next transport. With the last
// one who misses the most others is put out while job.min_workers and more than half are left, else
// the job fails. In: members that become ready or are lost, Reached, time. Out: Form orders, the
// job's phase and transport, evictions of who does not answer or is not reached, the job's failure
// with the pair that cannot connect.
//
// A job that goes on with the workers of an earlier coordinator begins although some pairs do not
// reach each other: the rounds avoid these links (BrokenPairs).
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/messages.h"
#include "base/result.h"
#include "coordinator/job/context.h"

namespace lockstep::coordinator {

class Formation {
 public:
  explicit Formation(Job* job);

  Status OnReached(Member& from, const msg::Reached& message);
  void OnOut(const MemberId& member);
  // True when all that form reach each other, or the job goes on without some links: it can begin.
  bool Advance();
  // When those that were in the job have had the time to come, they are fewer than a quorum.
  bool TooFewCame() const;
  // After that: the links that the job begins without; of each the lower id comes first.
  struct Broken {
    MemberId a;
    MemberId b;
    std::string error;
  };
  std::vector<Broken> BrokenPairs() const;
  Time NextDeadline() const;
  void CheckInvariants() const;
  // Names the workers that are waited for, until the job has begun.
  std::string Waiting() const;

 private:
  void Gather();
  bool Awaits(WorkerId worker) const;
  bool AllAreReady() const;                 // that are waited for
  bool AwaitsJoining(std::uint32_t ready);  // says so, once
  void ChooseTransports();
  void Form();
  bool ConcludeTry();  // true: all reach each other
  void Failed(const std::string& reason);
  // The number of participants that must be left when some of so many are left out.
  std::size_t LeastOf(std::size_t participants) const;
  bool ReachEachOther(const Member& a, const Member& b) const;  // both have said so
  bool AllReachAll(const std::vector<Member*>& participants) const;
  bool AnySilent();
  void LeaveOut(std::vector<Member*> participants, std::vector<std::uint32_t> missed);
  std::string Unreached(WorkerId worker) const;
  std::vector<Member*> Participants() const;
  std::string Missing() const;  // of many the first ones

  Job* job_;
  // Those that were in the job of an earlier coordinator, by slot: the job goes on as soon as they
  // are ready. Empty: any so many as it begins with.
  std::vector<bool> awaited_;
  Time join_deadline_ = kNever;  // from the first Advance on
  // At this time the job starts with the ready workers, if they are enough and nobody else has
  // connected. When a job continues with its workers, those that are there find it sooner than
  // others could be started.
  Time begin_deadline_ = kNever;
  bool said_joining_ = false;
  // Still to be tried, the first one now; not empty while the job forms, unless it has failed.
  std::vector<std::string> transports_;
  // The try that is under way; each begins with nothing of the one before. Exactly its participants
  // are in state kForming: when one of them goes, all gather again (OnOut).
  std::uint32_t formation_ = 0;
  Time deadline_;
  std::vector<bool> answered_;  // by slot; each answers once
  std::uint32_t silent_ = 0;    // the first slot whose participant may not have
  BitMatrix reached_;           // [from][to], as `from` says
  struct Missed {
    WorkerId peer;
    std::string error;
  };
  std::map<WorkerId, Missed> unreached_;      // of who says so, the first that it does not reach
  std::vector<std::uint32_t> missed_before_;  // in earlier tries with the last transport; by slot
  std::size_t most_participants_ = 0;         // of those tries
};

}  // namespace lockstep::coordinator
