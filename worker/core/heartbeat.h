// Finds out whether the peers still reach this worker. A peer that was told nothing else for a
// while is told Alive. A peer from which nothing has come for longer than
// MachineConfig::peer_silence is closed. That makes it unreachable to the coordinator, as a
// connection that breaks does. Without this a link that swallows everything would hold up a round
// for as long as the transport below keeps hoping.
//
// A small message waits behind the bulk that is on its way, so all that comes counts. That is
// messages, pieces, questions for pieces, and bytes of pieces where the transport can tell.
// Traffic: at most one message to each peer in a quarter of that time, none where rounds follow
// each other faster.
#pragma once

#include <map>

#include "worker/core/context.h"

namespace lockstep::worker {

// A stop of this very process makes all peers look silent. So the time by which a look at them
// comes late is taken off everybody's silence before it is judged.
class Heartbeat {
 public:
  explicit Heartbeat(Context& context) : context_(context) {}

  void OnUp(const MemberId& peer);
  void OnDown(const MemberId& peer) { peers_.erase(peer); }
  void OnHeard(const MemberId& peer);
  void OnSaid(const MemberId& peer);
  void OnTimer(const event::TimerDue& due);
  Time next_timer() const { return peers_.empty() ? kNever : due_; }

  void CheckInvariants() const;

 private:
  struct Peer {
    Time said;
    // Before its first message the peer may be measuring the path, and its own core may not know
    // of us: until then it has the time of a formation more.
    bool spoke = false;
    bool closed = false;  // by this; its end is not here yet
    Time heard;           // before it spoke: since when it is up
  };
  Duration Patience(const Peer& peer) const {
    return context_.config.peer_silence +
           (peer.spoke ? Duration{} : context_.config.formation_timeout);
  }
  Duration Interval() const { return context_.config.peer_silence / 4; }

  Context& context_;
  std::map<MemberId, Peer> peers_;  // that are up
  Time due_ = kNever;
};

}  // namespace lockstep::worker
