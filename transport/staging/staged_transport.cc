#include "transport/staging/staged_transport.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <unordered_map>
#include <utility>

#include "base/check.h"
#include "transport/staging/ring.h"

namespace lockstep::transport {
namespace {

using staging::Ring;

// Regions of the device have numbers of their own, so that those of the host can keep the inner
// transport's.
constexpr std::uint32_t kDeviceRegions = 1u << 31;

constexpr const char* kDeviceFailed = "a copy from or to the device has failed";

// A copy that has begun. The device's thread sets it and touches nothing else afterwards.
class Completion {
 public:
  void Set(bool ok) {
    state_.store(ok ? kDone : kFailed, std::memory_order_release);
    state_.notify_all();
  }
  // Returns whether the bytes are there.
  bool Wait() const {
    state_.wait(kUnderWay, std::memory_order_acquire);
    return state_.load(std::memory_order_acquire) == kDone;
  }

 private:
  enum State : std::uint8_t { kUnderWay, kDone, kFailed };
  std::atomic<State> state_{kUnderWay};
};
using Copying = std::shared_ptr<Completion>;

class StagedTransport final : public Transport, public Handler {
 public:
  StagedTransport(std::unique_ptr<Transport> inner, DeviceCopies& copies, std::size_t piece_bytes)
      : inner_(std::move(inner)),
        copies_(copies),
        capabilities_(inner_->capabilities()),
        piece_bytes_(std::min(piece_bytes, capabilities_.max_piece_bytes)) {
    capabilities_.cuda_memory = true;
    capabilities_.max_piece_bytes = piece_bytes_;
  }
  ~StagedTransport() override {
    Stop();
    for (const auto& [peer, rings] : peers_) Free(rings);
    for (const Rings& rings : spare_) Free(rings);
  }

  Status Start(Handler* handler) override {
    handler_ = handler;
    return inner_->Start(this);
  }
  void Stop() override {
    inner_->Stop();
    // Copies post to the inner transport before they are done, and not afterwards.
    for (const auto& [cookie, serve] : serves_) {
      if (serve.copying) serve.copying->Wait();
    }
    for (const auto& [id, fetch] : fetches_) {
      if (fetch.copying) fetch.copying->Wait();
    }
  }
  void Post(std::function<void()> task) override { inner_->Post(std::move(task)); }
  void PostAt(Time when, std::function<void()> task) override {
    inner_->PostAt(when, std::move(task));
  }
  const Capabilities& capabilities() const override { return capabilities_; }
  std::string address() const override { return inner_->address(); }
  void Connect(const MemberId& who, const std::string& address) override {
    inner_->Connect(who, address);
  }
  void Close(PeerId peer, std::string reason) override { inner_->Close(peer, std::move(reason)); }
  std::optional<Time> LastHeard(PeerId peer) const override { return inner_->LastHeard(peer); }
  bool Send(PeerId peer, std::span<const std::byte> bytes) override {
    return inner_->Send(peer, bytes);
  }

  Result<RegionId> Register(MemoryKind kind, void* base, std::size_t bytes) override {
    if (kind != MemoryKind::kCuda) return inner_->Register(kind, base, bytes);
    const RegionId id(kDeviceRegions | next_region_++);
    regions_.emplace(id, DeviceRegion{static_cast<std::byte*>(base), bytes});
    return id;
  }
  void Unregister(RegionId region) override {
    if (regions_.erase(region) == 0) inner_->Unregister(region);
  }

  Result<FetchId> Fetch(PeerId peer, const PieceName& name, const Slice& destination) override {
    std::byte* device = Find(destination);
    if (device == nullptr) return inner_->Fetch(peer, name, destination);
    LOCKSTEP_CHECK(name.bytes <= piece_bytes_, "a fetch of {} bytes", name.bytes);
    const auto rings = peers_.find(peer);
    if (rings == peers_.end()) return Error{ErrorCode::kClosed, "the peer is down"};
    const auto slot = rings->second.in.Take();
    if (!slot) return Error{ErrorCode::kUnavailable, "all buffers for this peer are under way"};
    auto id = inner_->Fetch(peer, name, rings->second.in.SliceOf(*slot, name.bytes));
    if (!id) {
      rings->second.in.Give(*slot);
      return id;
    }
    fetches_.emplace(*id, StagedFetch{peer, *slot, device, name.bytes, nullptr});
    return id;
  }
  void GiveUp(FetchId fetch) override {
    const auto found = fetches_.find(fetch);
    // A piece that has arrived and is being copied counts as complete.
    if (found == fetches_.end() || !found->second.copying) inner_->GiveUp(fetch);
  }
  void Provide(PeerId peer, std::uint64_t cookie, const Slice& slice) override {
    for (auto& [own, serve] : serves_) {
      if (serve.peer != peer || serve.cookie != cookie || !serve.unanswered) continue;
      serve.unanswered = false;
      std::byte* device = Find(slice);
      if (device == nullptr) return inner_->Provide(peer, own, slice);
      serve.device = device;
      serve.bytes = slice.bytes;
      return Enqueue(own);
    }
  }

  // --- of the inner transport
  void OnPeerUp(PeerId peer, const MemberId& who, const PathReport& path) override {
    auto rings = MakeRings();
    if (!rings) {
      inner_->Close(peer, "nothing can be staged for it: " + rings.error().message);
      refused_.insert(peer);
      return;
    }
    peers_.emplace(peer, std::move(*rings));
    handler_->OnPeerUp(
        peer, who,
        {.text = path.text + ", staged through pinned memory", .rdma = path.rdma, .staged = true});
  }
  void OnConnectFailed(const MemberId& who, const Error& error) override {
    handler_->OnConnectFailed(who, error);
  }
  void OnPeerDown(PeerId peer, const Error& reason) override {
    if (refused_.erase(peer) != 0) return;
    // Copies end soon by themselves, whatever peers do; no callback for this peer may come after
    // this one.
    std::vector<std::uint64_t> serves;
    for (const auto& [own, serve] : serves_) {
      if (serve.peer == peer) serves.push_back(own);
    }
    for (const std::uint64_t own : serves) {
      LOCKSTEP_CHECK(serves_.at(own).copying && serves_.at(own).ended,
                     "a peer is down that is still served");
      CopiedOut(own, serves_.at(own).copying->Wait());
    }
    std::vector<FetchId> fetches;
    for (const auto& [id, fetch] : fetches_) {
      if (fetch.peer == peer) fetches.push_back(id);
    }
    for (const FetchId id : fetches) {
      const bool ok = fetches_.at(id).copying->Wait();
      FinishFetch(id, ok ? FetchStatus::kOk : FetchStatus::kPeerDown);
    }
    const auto rings = peers_.find(peer);
    spare_.push_back(std::move(rings->second));
    peers_.erase(rings);
    handler_->OnPeerDown(peer, reason);
  }
  void OnMessage(PeerId peer, std::span<const std::byte> bytes) override {
    if (!refused_.contains(peer)) handler_->OnMessage(peer, bytes);
  }

  ServeAnswer OnFetch(PeerId peer, const PieceName& name) override {
    if (refused_.contains(peer)) return {};
    ServeAnswer answer = handler_->OnFetch(peer, name);
    if (!answer.have && !answer.later) return answer;
    const std::uint64_t own = next_cookie_++;
    StagedServe& serve = serves_[own];
    serve.peer = peer;
    serve.cookie = std::exchange(answer.cookie, own);
    serve.unanswered = answer.later;
    if (answer.later) return answer;
    serve.device = Find(answer.slice);
    serve.bytes = answer.slice.bytes;
    if (serve.device == nullptr) return answer;
    if (serve.bytes > piece_bytes_) {
      const std::uint64_t cookie = serve.cookie;
      serves_.erase(own);
      handler_->OnServed(peer, cookie);
      inner_->Close(peer, fmt::format("it asks for a piece of {} bytes", name.bytes));
      return {};
    }
    Enqueue(own);
    return {.have = false, .slice = {}, .cookie = own, .later = true};
  }
  void OnServed(PeerId peer, std::uint64_t own) override {
    StagedServe& serve = serves_.at(own);
    if (serve.copying) {
      serve.ended = true;  // its memory is being read; CopiedOut reports the end
      return;
    }
    Rings& rings = peers_.at(peer);
    if (serve.slot) {
      rings.out.Give(*serve.slot);
    } else {
      std::erase(rings.waiting, own);
    }
    FinishServe(own);
  }
  void OnFetchDone(FetchId id, FetchStatus status) override {
    const auto found = fetches_.find(id);
    if (found == fetches_.end()) return handler_->OnFetchDone(id, status);
    StagedFetch& fetch = found->second;
    if (status != FetchStatus::kOk || fetch.bytes == 0) return FinishFetch(id, status);
    fetch.copying = std::make_shared<Completion>();
    copies_.FromPinned(fetch.device, peers_.at(fetch.peer).in.At(fetch.slot), fetch.bytes,
                       [this, id, copying = fetch.copying](bool ok) {
                         inner_->Post([this, id, ok] { CopiedIn(id, ok); });
                         copying->Set(ok);
                       });
  }

 private:
  struct DeviceRegion {
    std::byte* base = nullptr;
    std::size_t bytes = 0;
  };
  struct Rings {
    Ring out;                           // for pieces that the peer is served
    Ring in;                            // for pieces that are fetched from it
    std::deque<std::uint64_t> waiting;  // serves for which `out` has no buffer
  };
  struct StagedServe {
    PeerId peer;
    std::uint64_t cookie = 0;     // the handler's cookie
    bool unanswered = false;      // the handler has not answered
    std::byte* device = nullptr;  // null: not the device's memory, nothing is staged
    std::uint64_t bytes = 0;
    std::optional<std::size_t> slot;
    Copying copying;     // the copy into the slot
    bool ended = false;  // given up while copying
  };
  struct StagedFetch {
    PeerId peer;
    std::size_t slot = 0;
    std::byte* device = nullptr;
    std::uint64_t bytes = 0;
    Copying copying;  // the copy of the arrived piece
  };

  Result<Rings> MakeRings() {
    if (!spare_.empty()) {
      Rings rings = std::move(spare_.back());
      spare_.pop_back();
      return rings;
    }
    auto out = Ring::Make(*inner_, copies_, kServeBuffers, piece_bytes_);
    if (!out) return out.error();
    auto in = Ring::Make(*inner_, copies_, capabilities_.fetch_window, piece_bytes_);
    if (!in) {
      out->Free(copies_);
      return in.error();
    }
    return Rings{.out = std::move(*out), .in = std::move(*in), .waiting = {}};
  }
  void Free(const Rings& rings) {
    rings.out.Free(copies_);
    rings.in.Free(copies_);
  }

  // It is null for memory that is not the device's.
  std::byte* Find(const Slice& slice) const {
    if ((slice.region.value & kDeviceRegions) == 0) return nullptr;
    const auto found = regions_.find(slice.region);
    LOCKSTEP_CHECK(found != regions_.end(), "region {} is not registered", slice.region);
    LOCKSTEP_CHECK(
        slice.offset <= found->second.bytes && slice.bytes <= found->second.bytes - slice.offset,
        "a slice of {} bytes at {} leaves its region of {} bytes", slice.bytes, slice.offset,
        found->second.bytes);
    return found->second.base + slice.offset;
  }

  void Enqueue(std::uint64_t own) {
    const PeerId peer = serves_.at(own).peer;
    LOCKSTEP_CHECK(serves_.at(own).bytes <= piece_bytes_, "a piece of {} bytes",
                   serves_.at(own).bytes);
    peers_.at(peer).waiting.push_back(own);
    BeginCopies(peer);
  }

  void BeginCopies(PeerId peer) {
    Rings& rings = peers_.at(peer);
    while (!rings.waiting.empty()) {
      const auto slot = rings.out.Take();
      if (!slot) return;
      const std::uint64_t own = rings.waiting.front();
      rings.waiting.pop_front();
      StagedServe& serve = serves_.at(own);
      serve.slot = slot;
      serve.copying = std::make_shared<Completion>();
      copies_.ToPinned(rings.out.At(*slot), serve.device, serve.bytes,
                       [this, own, copying = serve.copying](bool ok) {
                         inner_->Post([this, own, ok] { CopiedOut(own, ok); });
                         copying->Set(ok);
                       });
    }
  }

  // It is also called for fetches that ended in the meantime.
  void CopiedIn(FetchId id, bool ok) {
    const auto found = fetches_.find(id);
    if (found == fetches_.end()) return;
    if (ok) return FinishFetch(id, FetchStatus::kOk);
    inner_->Close(found->second.peer, kDeviceFailed);  // OnPeerDown ends the fetch
  }
  void CopiedOut(std::uint64_t own, bool ok) {
    const auto found = serves_.find(own);
    if (found == serves_.end() || !found->second.copying) return;
    StagedServe& serve = found->second;
    if (!ok && !serve.ended) {
      // OnServed and OnPeerDown follow; the bytes in the buffer must not reach the peer.
      return inner_->Close(serve.peer, kDeviceFailed);
    }
    serve.copying = nullptr;
    Ring& ring = peers_.at(serve.peer).out;
    if (!serve.ended) {
      return inner_->Provide(serve.peer, own, ring.SliceOf(*serve.slot, serve.bytes));
    }
    ring.Give(*serve.slot);
    FinishServe(own);
  }

  // It gives its buffer back.
  void FinishServe(std::uint64_t own) {
    const PeerId peer = serves_.at(own).peer;
    const std::uint64_t cookie = serves_.at(own).cookie;
    serves_.erase(own);
    BeginCopies(peer);
    handler_->OnServed(peer, cookie);
  }

  void FinishFetch(FetchId id, FetchStatus status) {
    const auto found = fetches_.find(id);
    peers_.at(found->second.peer).in.Give(found->second.slot);
    fetches_.erase(found);
    handler_->OnFetchDone(id, status);
  }

  const std::unique_ptr<Transport> inner_;
  DeviceCopies& copies_;
  Capabilities capabilities_;
  const std::size_t piece_bytes_;
  Handler* handler_ = nullptr;
  // Only the data thread uses these.
  std::uint32_t next_region_ = 1;
  std::unordered_map<RegionId, DeviceRegion> regions_;
  std::map<PeerId, Rings> peers_;
  std::set<PeerId> refused_;  // up in the inner transport, but not reported
  std::vector<Rings> spare_;
  std::uint64_t next_cookie_ = 1;
  std::map<std::uint64_t, StagedServe> serves_;
  std::map<FetchId, StagedFetch> fetches_;
};

}  // namespace

std::unique_ptr<Transport> MakeStagedTransport(std::unique_ptr<Transport> inner,
                                               DeviceCopies& copies, std::size_t piece_bytes) {
  return std::make_unique<StagedTransport>(std::move(inner), copies, piece_bytes);
}

}  // namespace lockstep::transport
