// The publication of one attempt: every owner has to publish the sums of its shard, and serve them.
//
// Decides which owner another one stands in for. At the deadline it decides who is pinged, whether
// owners get more time, and who is blamed for the delay.
//
// In: Published, who is out, the time, and of the round who lacks its sums. Out: decisions; the
// round sends what is to be said, and puts those that are blamed on trial.
//
//   awaited --it publishes--> published        all published: until all have applied the round,
//      |   \                      ^            owners that fall silent are found all the same
//      |    another one did, or   | it does so as well
//      |    it is out --> excused -
//
// Invariants:
//   I1  a stand-in makes the very bits that the owner would make: they are fixed by the commit. So
//       nobody need be fenced for it, and to be wrong about an owner costs a reduction and no more.
//       Where contributors pass sums on (ring, tree), one silent contributor stops all others. So
//       contributors are pinged, and the attempt ends with the first one that does not answer.
//
//   I6  the deadline is never kNever; each look at it moves it on, asks, blames or gives up.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "base/messages.h"
#include "base/result.h"
#include "base/time.h"
#include "coordinator/job/context.h"

namespace lockstep::coordinator {

class Publication {
 public:
  struct StandIn {
    MemberId by;
    bool published = false;
  };
  // Another member makes the owner's shard, too.
  struct Order {
    MemberId owner;
    MemberId by;
  };
  enum class Heard : std::uint8_t {
    kKnown,  // or of no matter any more
    kFirst,  // a shard less is awaited
    kLate,   // the owner itself, after another one had published its shard, or it had been out
  };
  // The state of the round at the deadline.
  struct Round {
    std::vector<MemberId> lacking;  // live members that have not applied it
    bool part_lost = false;         // nobody can fetch all of its parts any more
    Time hopeless_from;
    bool may_try_again = false;  // with other owners
  };
  struct Decision {
    std::vector<WorkerId> ping;
    std::vector<WorkerId> blamed;  // owners
    std::string fail_over;         // why; empty: no
    bool hopeless = false;         // it comes to nothing though all live
    bool stuck = false;            // and another attempt would as well
  };

  // Belongs to no attempt: it is replaced before it is asked anything.
  Publication() = default;
  // An attempt's commit is sent now.
  Publication(const Job* job, const msg::Commit& commit);

  bool complete() const { return awaited_ == 0; }
  bool Owns(const MemberId& member) const { return Find(member) != nullptr; }
  // The member that stands in for it; null: nobody.
  const StandIn* StandInFor(const MemberId& owner) const;
  // The owners that have published, and how long they took.
  std::pair<std::vector<MemberId>, std::vector<Duration>> Times() const;
  // Owners that had a stand-in and have not published, at the end.
  std::vector<MemberId> Replaced() const;

  // An error is a violation of the protocol by the sender.
  Result<Heard> OnPublished(const MemberId& from, const msg::Published& message);
  void OnOut(const MemberId& member);

  // The time when awaited owners get a stand-in; kNever: nobody can, or none is needed.
  Time StandInFrom() const;
  // Returns what is to be ordered then; each once.
  std::vector<Order> TakeOrders();
  Time Deadline() const;
  Decision OnDeadline(const Round& round);

  void CheckInvariants() const;

 private:
  enum class State : std::uint8_t { kAwaited, kPublished, kExcused };
  // Invariants: `after` counts only of kPublished; who stands in for somebody has published, and
  // stands in for one owner only.
  struct Owner {
    MemberId id;
    State state = State::kAwaited;
    bool stands_in = false;
    Duration after{};  // since the commit
    std::optional<StandIn> stand_in = std::nullopt;
  };

  const Owner* Find(const MemberId& owner) const;
  Owner* Find(const MemberId& owner);
  const Owner* ChooseStandIn() const;
  Heard Take(Owner& owner, State state);
  bool Serves(const MemberId& id) const;
  bool Silent(const MemberId& id) const;
  bool Live(const MemberId& id) const;
  void GiveMoreTime();
  Decision OnAwaitedLate(const Round& round);
  Decision OnPassingLate();
  Decision OnServingLate(const Round& round);

  const Job* job_ = nullptr;
  Time begun_;
  std::vector<Owner> owners_;  // ascending
  std::uint32_t awaited_ = 0;  // owners that are kAwaited
  // Awaited owners with a stand-in; and, by position, the owners that are kPublished, in that
  // order. Kept so that an event need not look at all owners.
  std::uint32_t stood_in_for_ = 0;
  // The contributors, where sums are passed on (base/routes.h). Each of them is waited for, and
  // nobody can stand in for one.
  std::vector<MemberId> passing_;
  std::vector<std::size_t> published_;
  // The deadline counts from here; at half of the patience missing members are pinged.
  Time from_;
  Duration patience_{};
  std::optional<Time> pinged_at_;
  std::uint32_t extensions_ = 0;
};

}  // namespace lockstep::coordinator
