// Moves work within the open round. Each unit is with one worker at a time. It is given again only
// when its holder has given it back, was fenced, or is out (I2).
//
// In: what a work rule proposes, what workers give back, who is out or away. Out: Revoke, Assign
// and FenceRound to workers. A worker that does not answer has a deadline, after which others go on
// without it (I6).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/time.h"
#include "coordinator/job/context.h"
#include "coordinator/round/round_work.h"
#include "policies/policy.h"

namespace lockstep::coordinator {

class UnitMoves {
 public:
  UnitMoves(Job* job, RoundWork* work) : job_(job), work_(work) {}

  void CarryOut(const policies::WorkVerdict& verdict);
  void RevokeNotBegun();
  void Reassign(WorkerId from, const RoundWork::GivenBack& back);
  void FenceUnanswered();
  void FenceAway();
  // Assigns the units that nobody has. False: no part is left, so the round is planned again.
  bool Place(const policies::RoundView& view);

  // The worker is out, and had not finished its units.
  void NoteGone(WorkerId worker);
  // The round is planned anew.
  void Reset() { gone_unfinished_.clear(); }

  // The number of workers without units that could take over, where so many have some.
  std::uint32_t Idle(std::uint32_t with_units) const;
  Time NextDeadline() const;
  // Compares takers_ with the members.
  void CheckInvariants() const;

 private:
  bool OthersRemain(WorkerId worker) const;
  void FenceWorker(WorkerId worker, const std::string& why);
  Time AwayDeadline() const;
  bool CanTake(const Member& member) const;
  bool IsComing(const Member& member) const;
  bool GoneUnfinished(WorkerId worker) const;
  // A stopped worker answers no fence, and a round in which others have units does not wait for
  // what it would say (I6).
  Time FenceAnswersUntil() const { return fenced_at_ + job_->bounds.Answer(); }
  void GiveTo(Member& taker, const std::vector<UnassignedUnit>& units);
  void Spread(const std::vector<Member*>& takers);
  // The same among all level members, without a pass over the members. False: nothing was done, as
  // there are members to be asked that have no part in the round, or none of these, or more than a
  // few units.
  bool SpreadFew();
  void RenewTakers();

  Job* job_;
  RoundWork* work_;
  Time fenced_at_;                         // a worker last
  std::vector<WorkerId> gone_unfinished_;  // were out with units that they had not finished
  // When the workers of the round would be done with one unit more, by their place in its view.
  // Known are the first `read` changes of this list of the view's.
  struct Takers {
    std::optional<std::uint64_t> list;
    std::size_t read = 0;
    std::vector<Duration> done_in;  // kNone: it can take none, or is not level
    std::size_t unknown = 0;        // that could take some, with unit times that nothing tells
  };
  static constexpr Duration kNone = Duration::max();
  Takers takers_;
};

}  // namespace lockstep::coordinator
