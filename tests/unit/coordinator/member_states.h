// Brings a member into a state by the way that a job takes.
#pragma once

#include "coordinator/job/members.h"

namespace lockstep::coordinator {

inline void Bring(Members& members, Member& member, MemberState to, Time now = {}) {
  using enum MemberState;
  for (const MemberState next : {kJoining, kReady, kForming, kLive}) {
    if (member.state == to) return;
    if (member.state == kLost || member.state < next) members.SetState(member, next, now);
  }
  if (member.state == to) return;
  if (!MayBecome(member.state, to)) members.SetState(member, kCatchingUp, now);
  members.SetState(member, to, now);
}

}  // namespace lockstep::coordinator
