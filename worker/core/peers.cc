#include "worker/core/peers.h"

#include <algorithm>

#include "base/check.h"

namespace lockstep::worker {

// A formation is a try to connect everybody with everybody over one transport. Several run at once
// when newcomers come one after the other. Another transport than before ends all of it: the
// coordinator gave that one up.
void Peers::OnForm(const msg::Form& form) {
  if (form.transport != transport_) {
    // Before the first Form, those that are up already had theirs earlier.
    const bool change = !transport_.empty();
    transport_ = form.transport;
    context_.Emit(action::UseTransport{transport_});
    for (auto it = peers_.begin(); change && it != peers_.end();) Forget((it++)->first);
    forming_.clear();
  }
  Forming& forming = forming_[form.formation];
  forming.deadline = context_.now + context_.config.formation_timeout;
  for (const auto* list : {&form.connect_to, &form.expect}) {
    for (const PeerInfo& info : *list) {
      if (info.member == context_.config.self) continue;
      forming.reached[info.member];
      peers_[info.member].info = info;
    }
  }
  for (const PeerInfo& info : form.connect_to) {
    if (info.member != context_.config.self && !Up(info.member)) {
      context_.Emit(action::ConnectPeer{info});
    }
  }
  std::vector<MemberId> members;
  for (const auto& [id, path] : forming.reached) members.push_back(id);
  for (const MemberId& id : members) TryToMap(id);
  ReportComplete();
}

// A new connection knows nothing of mappings: both ends look again.
void Peers::OnUp(const event::PeerUp& up) {
  Peer& peer = peers_[up.peer];
  peer.up = true;
  peer.path = up.path;
  peer.maps_us.reset();
  peer.we_map.reset();
  peer.asked_to_map = false;
  peer.gone = false;
  peer.gone_since.reset();
  if (peer.left) {
    context_.Emit(action::ClosePeer{up.peer, "it has left the job"});
    return;
  }
  TryToMap(up.peer);
}

// The peer stays known for a while, because its memory may be read longer than it lives.
void Peers::OnDown(const event::PeerDown& down) {
  Peer& peer = peers_[down.peer];
  peer.up = false;
  peer.gone = true;
  peer.gone_since = committed_;
  any_gone_ = true;
  NoteUnreached(down.peer, down.reason);
}

void Peers::OnConnectFailed(const event::ConnectFailed& failed) {
  if (!Up(failed.peer)) NoteUnreached(failed.peer, failed.reason);
}

// A mapping that fails is no fault: the pair uses the transport, and the log says why.
void Peers::OnMapped(const event::PeerMapped& mapped) {
  const auto at = peers_.find(mapped.peer);
  if (at == peers_.end() || !at->second.up || !at->second.asked_to_map) return;
  at->second.we_map = mapped.ok;
  if (!mapped.ok) {
    context_.Log(fmt::format("{} is not mapped: {}", Name(mapped.peer), mapped.error));
  }
  SayMapState(mapped.peer, mapped.ok);
}

void Peers::OnMapState(const MemberId& id, const MapState& state) {
  peers_[id].maps_us = state.maps_you;
  NoteIfReached(id);
}

// By the coordinator's word, whatever the connection says; a fenced process may still be running.
void Peers::OnLeft(const msg::MemberLeft& left) {
  NoteUnreached(left.member, left.reason);
  const auto at = peers_.find(left.member);
  if (at == peers_.end()) return;
  at->second.left = true;
  if (at->second.up) {
    context_.Emit(action::ClosePeer{left.member, left.reason});
  } else if (!at->second.gone) {
    Forget(left.member);  // it never came
  }
}

Time Peers::next_timer() const {
  Time next = kNever;
  for (const auto& [number, forming] : forming_) next = std::min(next, forming.deadline);
  return next;
}

// I6: a formation ends, if with nothing better then with who was not reached.
void Peers::OnTimer() {
  std::set<MemberId> late;
  for (const auto& [number, forming] : forming_) {
    if (context_.now < forming.deadline) continue;
    for (const auto& [id, path] : forming.reached) {
      if (!path) late.insert(id);
    }
  }
  for (const MemberId& id : late) {
    const bool up = Up(id);
    // Half a mapping would be understood differently at its two ends: none at all then.
    const bool heard = up && peers_[id].maps_us;
    const char* why = heard ? "the mapping was not settled in time"
                      : up  ? "nothing was heard from it in time"
                            : "no connection in time";
    if (up) context_.Emit(action::ClosePeer{id, why});
    NoteUnreached(id, why);
  }
}

// Two rounds on, nothing of a dead peer is in a commit that can still be tried again.
void Peers::ForgetGone(const std::function<bool(const MemberId&)>& still_read) {
  if (!any_gone_) return;
  any_gone_ = false;
  std::vector<MemberId> gone;
  for (const auto& [id, peer] : peers_) {
    if (!peer.gone) continue;
    LOCKSTEP_CHECK(!peer.gone_since || committed_, "{} is gone since a round before the first",
                   Name(id));
    const bool old = !peer.gone_since || committed_->value >= peer.gone_since->value + 2;
    if (old && !still_read(id)) {
      gone.push_back(id);
    } else {
      any_gone_ = true;
    }
  }
  for (const MemberId& id : gone) Forget(id);
}

bool Peers::Up(const MemberId& peer) const {
  const auto at = peers_.find(peer);
  return at != peers_.end() && at->second.up;
}

void Peers::ForEachUp(const std::function<void(const MemberId&)>& visit) const {
  for (const auto& [id, peer] : peers_) {
    if (peer.up) visit(id);
  }
}

bool Peers::Left(const MemberId& peer) const {
  const auto at = peers_.find(peer);
  return at != peers_.end() && at->second.left;
}

bool Peers::Mapped(const MemberId& peer) const {
  const auto at = peers_.find(peer);
  return at != peers_.end() && at->second.mapped();
}

bool Peers::AnyNotMapped() const {
  return std::ranges::any_of(peers_, [](const auto& entry) {
    return entry.second.up && !entry.second.left && !entry.second.mapped();
  });
}

// Once for each connection, when it is up and the coordinator has said where its arena is: in
// either order.
void Peers::TryToMap(const MemberId& id) {
  Peer& peer = peers_[id];
  if (!peer.up || !peer.info) return;
  if (peer.we_map || peer.asked_to_map) {
    NoteIfReached(id);
    return;
  }
  const bool possible = context_.config.mapping && !peer.info->mapping_address.empty() &&
                        peer.info->host_id == context_.config.host_id;
  if (possible) {
    peer.asked_to_map = true;
    context_.Emit(action::MapPeer{*peer.info});
  } else {
    peer.we_map = false;
    SayMapState(id, false);
  }
}

void Peers::SayMapState(const MemberId& id, bool maps) {
  context_.Say(id, MapState{maps});
  NoteIfReached(id);
}

// A pair is mapped when both ends map: half a mapping would be read at one end and sent at the
// other. And a connection can swallow what the peer says from its first byte on: it is reached when
// it has been heard, whether it maps or not.
void Peers::NoteIfReached(const MemberId& id) {
  const Peer& peer = peers_[id];
  if (!peer.up || !peer.we_map || !peer.maps_us) return;
  Note(id, {id, true, "", peer.mapped(), peer.mapped() ? "mapped" : peer.path, 0});
}

// Also of one that was reached before: the coordinator is told by Unreachable then, and a formation
// that has its answer keeps it.
void Peers::NoteUnreached(const MemberId& id, std::string error) {
  Note(id, {id, false, std::move(error), false, "", 0});
}

void Peers::Note(const MemberId& id, const PeerPath& path) {
  for (auto& [number, forming] : forming_) {
    const auto at = forming.reached.find(id);
    if (at != forming.reached.end() && !at->second) at->second = path;
  }
  ReportComplete();
}

// The coordinator starts, or gives up a transport, by what all have reported: so each reports once,
// when it knows of all.
void Peers::ReportComplete() {
  for (auto it = forming_.begin(); it != forming_.end();) {
    msg::Reached reached{it->first, {}};
    for (const auto& [id, path] : it->second.reached) {
      if (path) reached.peers.push_back(*path);
    }
    if (reached.peers.size() < it->second.reached.size()) {
      ++it;
      continue;
    }
    it = forming_.erase(it);
    context_.Tell(std::move(reached));
  }
}

// Its mapping goes with it, so nothing may read there any more; see ForgetGone.
void Peers::Forget(const MemberId& id) {
  LOCKSTEP_CHECK(peers_.contains(id), "{} is forgotten twice", Name(id));
  const Peer& peer = peers_[id];
  if (peer.asked_to_map) context_.Emit(action::UnmapPeer{id});
  peers_.erase(id);
}

void Peers::CheckInvariants() const {
  for (const auto& [id, peer] : peers_) {
    LOCKSTEP_CHECK(!(peer.up && peer.gone), "{} is up and gone", Name(id));
    LOCKSTEP_CHECK(!peer.gone || any_gone_, "{} is gone, and never forgotten", Name(id));
    LOCKSTEP_CHECK(peer.asked_to_map || !peer.we_map.value_or(false),
                   "{} is mapped and was not asked to be", Name(id));
    LOCKSTEP_CHECK(!peer.asked_to_map || peer.info, "{} is mapped at no address", Name(id));
  }
  for (const auto& [number, forming] : forming_) {
    const bool waits = std::ranges::any_of(
        forming.reached, [](const auto& member) { return !member.second.has_value(); });
    LOCKSTEP_CHECK(waits, "formation {} is complete and was not reported", number);
  }
}

}  // namespace lockstep::worker
