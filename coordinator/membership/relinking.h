// Data links that broke are made again: a reset of one connection is no reason to lose a process.
// Both ends get a Form with each other alone; what they had to say to each other is said anew by
// their cores. A link that cannot be made again within liveness.timeout stays broken, and the rules
// for broken edges decide who has to go.
//
// Decides when a broken link is tried again, and when it is given up: after kTries tries, or
// liveness.timeout after the first one. With replicas, one end of a broken link may be behind until
// the link works again. So for a member that is behind, a link that was given up is tried again at
// times. Liveness decides whether an end of it is alive: until both ends have reported the break,
// or were heard since, nothing is tried and nothing given up. In: Unreachable and Reached of its
// ends, time. Out: Form orders, and Members' edges: mending, mended, broken.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <utility>

#include "base/messages.h"
#include "base/result.h"
#include "coordinator/job/context.h"

namespace lockstep::coordinator {

class Relinking {
 public:
  explicit Relinking(Job* job) : job_(job) {}

  Status OnUnreachable(Member& from, const msg::Unreachable& message);
  Status OnReached(Member& from, const msg::Reached& message);
  void OnOut(const MemberId& member);
  void CheckInvariants() const;
  // Its pauses are those of liveness, so a call at each of those periods is enough.
  void Advance();

 private:
  // The lower worker id comes first: that one connects.
  using Pair = std::pair<MemberId, MemberId>;
  // - broken && !given_up: it is being connected again, and Members has the edge as mending.
  // - broken && given_up: it waits for a new report of an end; only a member that is behind goes on
  //   trying.
  // - !broken: mended_at is set; the count of tries stands until the link has been quiet for long.
  struct Link {
    std::uint32_t formation = 0;  // the try that is under way; 0: none, as when it is not broken
    std::uint32_t tries = 0;      // that its short life has seen, see kQuietTimeouts
    Time broke_at;                // the latest time
    Time next_try;
    std::optional<Time> first_try;  // since broke_at
    std::optional<Time> mended_at;
    bool broken = true;
    bool given_up = false;
    bool said_broken[2] = {false, false};   // by its ends, since broke_at
    bool said_reached[2] = {false, false};  // by its ends, of this formation
  };

  void Break(Link* link);
  bool Alive(const Link& link, int end, const Member& member) const;
  void Try(const Pair& ends, Link* link);
  void Fail(Link* link);
  void Mend(const Pair& ends, Link* link);
  void GiveUp(const Pair& ends, Link* link);

  Job* job_;
  std::map<Pair, Link> links_;  // at most one for each two members; forgotten when one is gone
};

}  // namespace lockstep::coordinator
