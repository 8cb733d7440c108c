#include "worker/core/heartbeat.h"

#include <algorithm>

#include "base/check.h"

namespace lockstep::worker {

// The first peer starts the timer; without peers there is none.
void Heartbeat::OnUp(const MemberId& peer) {
  if (peers_.empty()) due_ = context_.now + Interval();
  peers_[peer] = Peer{context_.now, false, false, context_.now};
}

// Whatever comes counts, a piece as well as a message.
void Heartbeat::OnHeard(const MemberId& peer) {
  const auto at = peers_.find(peer);
  if (at == peers_.end()) return;
  at->second.spoke = true;
  at->second.heard = context_.now;
}

// Whoever hears enough of this worker anyway is not told more.
void Heartbeat::OnSaid(const MemberId& peer) {
  const auto at = peers_.find(peer);
  if (at != peers_.end()) at->second.said = context_.now;
}

// Says what is due and judges who is silent, in that order of cost: a message is cheap, a
// connection that is closed wrongly costs a round.
void Heartbeat::OnTimer(const event::TimerDue& due) {
  if (peers_.empty() || context_.now < due_) return;
  LOCKSTEP_CHECK(due_ != kNever, "peers are up and no look at them is due");
  // This process stood still: what came meanwhile is not read yet.
  const Duration late = context_.now - due_;
  const Duration gap = late > Interval() ? late : Duration{};
  due_ = context_.now + Interval();
  for (const auto& [peer, when] : due.heard) {
    const auto at = peers_.find(peer);
    if (at != peers_.end()) at->second.heard = std::max(at->second.heard, when);
  }
  for (auto& [id, peer] : peers_) {
    peer.heard = std::min(context_.now, peer.heard + gap);
    const Duration silence = context_.now - peer.heard;
    if (peer.closed) continue;
    if (silence >= Patience(peer)) {
      peer.closed = true;
      context_.Emit(action::ClosePeer{
          id, fmt::format("nothing was heard from it for {:.1f} s", Seconds(silence))});
    } else if (context_.now - peer.said >= Interval()) {
      context_.Say(id, Alive{});
    }
  }
}

void Heartbeat::CheckInvariants() const {
  LOCKSTEP_CHECK(peers_.empty() || due_ <= context_.now + Interval(),
                 "I6: nobody looks whether the peers still reach this worker");
  for (const auto& [id, peer] : peers_) {
    LOCKSTEP_CHECK(peer.said <= context_.now && peer.heard <= context_.now,
                   "{} is heard from in the future", Name(id));
  }
}

}  // namespace lockstep::worker
