#include "worker/runtime/peer_mapper.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "transport/mapping/map_peer.h"
#include "worker/runtime/open_transport.h"

namespace lockstep::worker {

namespace {

constexpr std::uint64_t kMeasuredBytes = 4u << 20;
// The reduction thread waits for it, and a peer that does not answer holds up no more than that.
constexpr Duration kPatienceForMore = std::chrono::seconds(1);

}  // namespace

void PeerMapper::Map(const PeerInfo& peer, std::function<void(const event::PeerMapped&)> done) {
  const std::uint64_t number = asked_[peer.member] = ++last_asked_;
  thread_->Post([this, number, peer, done = std::move(done)] {
    event::PeerMapped mapped{.peer = peer.member, .ok = false, .error = {}};
    auto made = transport::MapPeer(peer.mapping_address, self_, peer.member, job_key_, patience_,
                                   memory_.sharing());
    if (!made) {
      mapped.error = made.error().message;
      threads_.core([=, this] { Finish(number, mapped, nullptr, 0, nullptr, done); });
      return;
    }
    mapped.ok = true;
    const auto arena = std::make_shared<const transport::PeerArena>(std::move(*made));
    const auto again = [peer, self = self_, key = job_key_, &memory = memory_]() {
      auto once_more = transport::MapPeer(peer.mapping_address, self, peer.member, key,
                                          kPatienceForMore, memory.sharing());
      if (!once_more) {
        spdlog::warn("{}", once_more.error().message);
        return PeerArenas::Arena();
      }
      return PeerArenas::Arena(std::make_shared<const transport::PeerArena>(std::move(*once_more)));
    };
    threads_.reduction([=, this] {
      const double rate =
          arena->data(0) == nullptr
              ? 0
              : MeasureMapped(memory_, arena->data(0), std::min(arena->bytes(0), kMeasuredBytes));
      threads_.core([=, this] { Finish(number, mapped, arena, rate, again, done); });
    });
  });
}

void PeerMapper::Finish(std::uint64_t number, const event::PeerMapped& mapped,
                        std::shared_ptr<const transport::PeerArena> arena, double rate,
                        std::function<PeerArenas::Arena()> again,
                        const std::function<void(const event::PeerMapped&)>& done) {
  // Unmapped, or asked for again, meanwhile: nobody waits for this one.
  const auto wanted = asked_.find(mapped.peer);
  if (wanted == asked_.end() || wanted->second != number) return;
  asked_.erase(wanted);
  if (arena) {
    // Operations that read an older mapping keep it until they end.
    arenas_.Put(mapped.peer, std::move(arena), std::move(again));
    rates_[mapped.peer] = rate;
    failures_.erase(mapped.peer);
  } else {
    failures_[mapped.peer] = mapped.error;
    spdlog::warn("worker {} is on this host, but gradients take the network: {}",
                 mapped.peer.worker, mapped.error);
  }
  done(mapped);
}

void PeerMapper::Unmap(const MemberId& peer) {
  asked_.erase(peer);
  rates_.erase(peer);
  failures_.erase(peer);
  arenas_.Drop(peer);
}

std::optional<double> PeerMapper::Rate(const MemberId& peer) const {
  const auto found = rates_.find(peer);
  return found == rates_.end() ? std::nullopt : std::optional(found->second);
}

std::string PeerMapper::WhyNot(const MemberId& peer) const {
  const auto found = failures_.find(peer);
  return found == failures_.end() ? "" : found->second;
}

}  // namespace lockstep::worker
