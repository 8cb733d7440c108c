// The other members: forming the job (connect, map, report who is reached), who is up and who is
// mapped.
//
// In: Form and MemberLeft of the coordinator, connections that come and go, mappings that were
// tried here and, by MapState, there. Out: ConnectPeer, MapPeer, UnmapPeer, ClosePeer, MapState,
// and one Reached for each formation, when it is known of every member in it whether it is reached.
#pragma once

#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <set>

#include "worker/core/context.h"

namespace lockstep::worker {

// The life of a peer here: it is named by Form (or up before that, if it was quicker). It is up,
// when its connection is made and proven, and mapped, when both ends read each other's memory. It
// is gone, when the connection ends, and forgotten some rounds later, when nobody reads its memory
// any more. Left, by the coordinator's word, can come at any time, and ends its connection.
class Peers {
 public:
  explicit Peers(Context& context) : context_(context) {}

  void OnForm(const msg::Form& form);
  void OnUp(const event::PeerUp& up);
  void OnDown(const event::PeerDown& down);
  void OnConnectFailed(const event::ConnectFailed& failed);
  void OnMapped(const event::PeerMapped& mapped);
  void OnMapState(const MemberId& peer, const MapState& state);
  void OnLeft(const msg::MemberLeft& left);
  void OnTimer();
  void OnCommitted(RoundId round) { committed_ = std::max(committed_.value_or(round), round); }
  // Forgets those who went two rounds ago, or before the first one was committed, unless their
  // memory is still read.
  void ForgetGone(const std::function<bool(const MemberId&)>& still_read);
  Time next_timer() const;

  bool Up(const MemberId& peer) const;
  void ForEachUp(const std::function<void(const MemberId&)>& visit) const;
  bool Knows(const MemberId& peer) const { return peers_.contains(peer); }
  // The last commit that was heard of.
  std::optional<RoundId> committed() const { return committed_; }
  // It is no member any more, by the coordinator.
  bool Left(const MemberId& peer) const;
  std::size_t known() const { return peers_.size(); }
  std::size_t forming() const { return forming_.size(); }
  // Each reads the other's memory in place. Stays true for two rounds at least after the peer's
  // death: its memory outlives it.
  bool Mapped(const MemberId& peer) const;
  // Is there one that takes what it needs over the transport?
  bool AnyNotMapped() const;

  void CheckInvariants() const;

 private:
  // `up` and `gone` exclude each other; neither: it was named and never came.
  struct Peer {
    std::optional<PeerInfo> info;  // none: it connected before the coordinator named it
    bool up = false;
    std::string path;
    std::optional<bool> maps_us;        // as it said
    std::optional<bool> we_map;         // as the shell found
    bool asked_to_map = false;          // and not unmapped since
    bool left = false;                  // it is no member any more; its memory may still be read
    bool gone = false;                  // it was up and is not any more
    std::optional<RoundId> gone_since;  // and this round was committed last then; none: no round
    bool mapped() const { return maps_us.value_or(false) && we_map.value_or(false); }
  };
  // A formation that is not reported yet: of one member at least `reached` does not say how.
  struct Forming {
    std::map<MemberId, std::optional<PeerPath>> reached;
    Time deadline;
  };

  void TryToMap(const MemberId& id);
  void SayMapState(const MemberId& id, bool maps);
  // Notes that `id` is reached once it is up and both ends know whether they map each other.
  void NoteIfReached(const MemberId& id);
  void NoteUnreached(const MemberId& id, std::string error);
  // In all formations that wait for it; reports those that wait for nobody else.
  void Note(const MemberId& id, const PeerPath& path);
  void ReportComplete();
  void Forget(const MemberId& id);

  Context& context_;
  std::string transport_;
  std::map<MemberId, Peer> peers_;
  std::map<std::uint32_t, Forming> forming_;  // by number; several newcomers may come at once
  std::optional<RoundId> committed_;
  bool any_gone_ = false;  // perhaps
};

}  // namespace lockstep::worker
