#include "tests/property/coordinator/arrivals.h"

#include <fmt/format.h>

#include "worker/core/peer_messages.h"

namespace lockstep::simulate {

namespace action = worker::action;
namespace event = worker::event;

Arrivals::Arrivals(Cluster* cluster) : cluster_(cluster) {
  cluster->on_event = [this](const MemberId& w, const worker::Event& e) { OnEvent(w, e); };
  cluster->on_action = [this](const MemberId& w, const worker::Action& a) { OnAction(w, a); };
}

void Arrivals::OnEvent(const MemberId& worker, const worker::Event& event) {
  ordered_.erase(worker);
  const auto arrive = [this](const Part& part, const worker::FloatRange& range) {
    arrived_[part].Merge(range);
  };
  if (const auto* done = std::get_if<event::FetchDone>(&event)) {
    const auto fetch = fetches_.find({worker, done->fetch});
    if (fetch == fetches_.end()) return;
    if (done->status == FetchStatus::kOk) arrive(fetch->second.part, fetch->second.range);
    fetches_.erase(fetch);
  } else if (const auto* from_peer = std::get_if<event::FromPeer>(&event)) {
    const auto decoded = worker::DecodePeerMessage(from_peer->bytes);
    if (!decoded.ok()) return;
    const auto* ready = std::get_if<worker::PartReady>(&decoded->message);
    if (ready == nullptr) return;
    for (const worker::FloatRange& range : ready->inlined.ranges) {
      arrive({worker, from_peer->peer, ready->round, ready->part}, range);
    }
  } else if (const auto* from = std::get_if<event::FromCoordinator>(&event)) {
    if (std::holds_alternative<msg::Assign>(from->message)) {
      ++assigned_;
      ordered_.insert(worker);
    } else if (const auto* start = std::get_if<msg::Start>(&from->message)) {
      // The round may be open again: what came of another plan of it counts no more.
      std::erase_if(arrived_, [&](const auto& a) {
        return a.first.owner == worker && a.first.round == start->plan.round;
      });
    }
  }
}

void Arrivals::OnAction(const MemberId& worker, const worker::Action& action) {
  if (const auto* fetch = std::get_if<action::Fetch>(&action)) {
    const PieceName& piece = fetch->piece;
    if (piece.kind != static_cast<std::uint32_t>(worker::PieceKind::kContribution)) return;
    const Part part{worker, fetch->peer, RoundId(piece.round),
                    PartIndex(static_cast<std::uint8_t>(piece.part))};
    fetches_[{worker, fetch->fetch}] = {
        part, {piece.offset / sizeof(float), piece.bytes / sizeof(float)}};
  } else if (const auto* said = std::get_if<action::ToCoordinator>(&action)) {
    // The answer to an order that comes too late for a part gives its units back at once.
    if (std::holds_alternative<msg::Revoked>(said->message) && ordered_.contains(worker))
      ++refused_;
  }
}

std::string Arrivals::Lacking(const msg::Commit& commit) const {
  if (commit.attempt.value > 0) return "";
  for (const CommittedPart& part : commit.parts) {
    for (const OwnerShare& share : commit.owners.owners) {
      if (share.owner == part.member) continue;
      for (const worker::Slice& slice : cluster_->layout.Shard(commit.owners, share.owner)) {
        const auto has = arrived_.find({share.owner, part.member, commit.round, part.part});
        if (has != arrived_.end() && has->second.Covers(slice.range)) continue;
        return fmt::format("round {}: owner {} has not all of [{}, {}) of worker {}'s part {}",
                           commit.round, share.owner.worker, slice.range.first, slice.range.end(),
                           part.member.worker, part.part);
      }
    }
  }
  return "";
}

}  // namespace lockstep::simulate
