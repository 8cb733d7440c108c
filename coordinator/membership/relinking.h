// Data links that broke are made again: a reset of one connection is no reason to lose a process.
// Both ends get a Form with each other alone; what they had to say to each other is said anew by
// their step machines. A link that cannot be made again within liveness.timeout stays broken, and
// the rules for broken edges decide who has to go.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <utility>

#include "base/messages.h"
#include "base/result.h"
#include "coordinator/core/context.h"

namespace lockstep::coordinator {

class Relinking {
 public:
  explicit Relinking(Job* job) : job_(job) {}

  Status On(Member& from, const Unreachable& message);
  Status On(Member& from, const Reached& message);
  void OnOut(const MemberId& member);
  // Its pauses are those of liveness, so that it is called at each of those periods will do.
  void Advance();

 private:
  // By the lower worker id first: that one connects.
  using Pair = std::pair<MemberId, MemberId>;
  struct Link {
    std::uint32_t formation = 0;  // that is under way; 0: none
    std::uint32_t tries = 0;      // that its short life has seen, see kQuietTimeouts
    Time broke_at;                // the latest time
    Time next_try;
    std::optional<Time> first_try;
    std::optional<Time> mended_at;
    bool broken = true;
    bool given_up = false;
    bool said_broken[2] = {false, false};  // by its ends
    bool said_reached[2] = {false, false};
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
