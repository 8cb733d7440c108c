#include "worker/runtime/peer_mapper.h"

#include <algorithm>
#include <utility>

#include "transport/mapping/map_peer.h"
#include "worker/runtime/link.h"

namespace lockstep::worker {

namespace {

constexpr std::uint64_t kMeasuredBytes = 4u << 20;

}  // namespace

void PeerMapper::Map(const PeerInfo& peer, std::function<void(const event::PeerMapped&)> done) {
  const std::uint64_t number = asked_[peer.member] = ++last_asked_;
  thread_->Post([this, number, peer, done = std::move(done)] {
    event::PeerMapped mapped{.peer = peer.member, .ok = false, .error = {}};
    auto arena = transport::MapPeer(peer.mapping_address, Identity(self_), Identity(peer.member),
                                    job_key_, patience_);
    double rate = 0;
    std::shared_ptr<transport::PeerArena> shared;
    if (arena) {
      mapped.ok = true;
      if (arena->blocks() > 0) {
        rate = MeasureMapped(arena->data(0), std::min(arena->bytes(0), kMeasuredBytes));
      }
      shared = std::make_shared<transport::PeerArena>(std::move(*arena));
    } else {
      mapped.error = arena.error().message;
    }
    run_([this, number, mapped = std::move(mapped), shared, rate, done] {
      // Unmapped, or asked for again, meanwhile: nobody waits for this one.
      const auto wanted = asked_.find(mapped.peer);
      if (wanted == asked_.end() || wanted->second != number) return;
      asked_.erase(wanted);
      if (shared) {
        // Operations that read an older mapping keep it until they end.
        arenas_.Put(mapped.peer, shared);
        rates_[mapped.peer] = rate;
      }
      done(mapped);
    });
  });
}

void PeerMapper::Unmap(const MemberId& peer) {
  asked_.erase(peer);
  rates_.erase(peer);
  arenas_.Drop(peer);
}

std::optional<double> PeerMapper::Rate(const MemberId& peer) const {
  const auto found = rates_.find(peer);
  return found == rates_.end() ? std::nullopt : std::optional(found->second);
}

}  // namespace lockstep::worker
