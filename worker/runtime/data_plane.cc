#include "worker/runtime/data_plane.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/log.h"
#include "transport/mapping/map_peer.h"

namespace lockstep::worker {
namespace {

constexpr Duration kMapTimeout = std::chrono::seconds(5);

template <class... Ts>
struct Overloaded : Ts... {
  using Ts::operator()...;
};
template <class... Ts>
Overloaded(Ts...) -> Overloaded<Ts...>;

transport::PeerIdentity Identity(const MemberId& member) {
  return {member.worker, member.incarnation};
}
MemberId Member(const transport::PeerIdentity& identity) {
  return {identity.worker, identity.incarnation};
}

event::FetchStatus Translate(transport::FetchStatus status) {
  switch (status) {
    case transport::FetchStatus::kOk:
      return event::FetchStatus::kOk;
    case transport::FetchStatus::kGone:
      return event::FetchStatus::kGone;
    case transport::FetchStatus::kGivenUp:
      return event::FetchStatus::kGivenUp;
    case transport::FetchStatus::kPeerDown:
      break;
  }
  return event::FetchStatus::kPeerDown;
}

class DataPlaneImpl;

// One transport and the connections over it; its callbacks run on its data thread.
class Link final : public transport::Handler {
 public:
  Link(DataPlaneImpl& plane, std::unique_ptr<transport::Transport> made, std::string link_name)
      : name(std::move(link_name)), transport(std::move(made)), probe(*transport), plane_(plane) {}

  void OnPeerUp(transport::PeerId peer, const transport::PeerIdentity& who,
                const std::string& path) override;
  void OnConnectFailed(const transport::PeerIdentity& who, const Error& error) override;
  void OnPeerDown(transport::PeerId peer, const Error& reason) override;
  void OnMessage(transport::PeerId peer, std::span<const std::byte> bytes) override;
  transport::ServeAnswer OnFetch(transport::PeerId peer, const transport::PieceName& name) override;
  void OnServed(transport::PeerId peer, std::uint64_t cookie) override;
  void OnFetchDone(transport::FetchId fetch, transport::FetchStatus status) override;

  bool Current() const;
  std::optional<transport::PeerId> PeerOf(const MemberId& member) const {
    const auto found = by_member.find(member);
    return found == by_member.end() ? std::nullopt : std::optional(found->second);
  }

  const std::string name;
  const std::unique_ptr<transport::Transport> transport;
  Probe probe;
  std::map<MemberId, transport::PeerId> by_member;      // up, one for each member
  std::map<transport::PeerId, MemberId> by_peer;        // the same
  std::map<MemberId, double> measured;                  // GB/s
  std::map<transport::FetchId, std::uint64_t> fetches;  // the machine's number

 private:
  // Messages may overtake the probe of the peer that sends them: they are kept until the machine
  // knows the peer.
  std::map<transport::PeerId, std::vector<std::vector<std::byte>>> early_;
  DataPlaneImpl& plane_;
};

class DataPlaneImpl final : public DataPlane {
 public:
  DataPlaneImpl(Setup setup, const Layout& layout, WorkerBuffers& buffers,
                const Optimizer& optimizer, ComputeDesk& desk)
      : setup_(std::move(setup)),
        buffers_(buffers),
        desk_(desk),
        operations_(layout, buffers, arenas_, optimizer),
        machine_(setup_.machine, layout),
        state_tensors_(static_cast<std::uint32_t>(optimizer.state_names().size())) {}

  ~DataPlaneImpl() override {
    // No callback may find a half-destroyed object: the transports end first, then the thread that
    // posts to them.
    for (auto& link : links_) link->transport->Stop();
    reduction_.reset();
    mapper_.reset();
  }

  Status Open() {
    if (buffers_.arena() != nullptr) {
      auto server = transport::ArenaServer::Start(*buffers_.arena(), setup_.job_key,
                                                  {.self = Identity(setup_.machine.self)});
      if (server) {
        arena_server_ = std::move(*server);
        mapping_address_ = arena_server_->address();
      } else {
        spdlog::warn("no mapping for peers on this host: {}", server.error().message);
      }
    }
    for (const char* name : {"ucx", "tcp"}) {
      if (setup_.transport == "auto" || setup_.transport == name) OpenLink(name);
    }
    if (links_.empty()) {
      std::string reasons;
      for (const TransportOffer& offer : offers_)
        reasons += fmt::format("{}{}: {}", reasons.empty() ? "" : "; ", offer.name, offer.error);
      return Error{ErrorCode::kUnavailable,
                   fmt::format("no transport can be used here ({})", reasons)};
    }
    home_.store(links_.front().get());
    return {};
  }

  const std::vector<TransportOffer>& offers() const override { return offers_; }
  const std::string& mapping_address() const override { return mapping_address_; }

  void Post(Event event) override {
    Run([this, event = std::move(event)] { Handle(event); });
  }

  // Runs a task where the machine lives. Any thread.
  void Run(std::function<void()> task) {
    Link* home = home_.load();
    home->transport->Post([this, home, task = std::move(task)]() mutable {
      if (home == home_.load()) {
        task();
      } else {
        Run(std::move(task));  // the machine has moved meanwhile
      }
    });
  }

  // On the machine's thread.
  void Handle(const Event& event) {
    Actions actions = machine_.Step(MonotonicNow(), event);
    CarryOut(std::move(actions), 0);
  }

  bool IsHome(const Link* link) const { return home_.load() == link; }
  StepMachine& machine() { return machine_; }
  WorkerBuffers& buffers() { return buffers_; }

 private:
  void OpenLink(const std::string& name) {
    transport::Options options;
    options.self = Identity(setup_.machine.self);
    options.job_key = setup_.job_key;
    options.listen_host = setup_.data_host;
    options.fetch_window = setup_.machine.fetch_window;
    options.connect_timeout = setup_.connect_timeout;
    TransportOffer offer{.name = name, .address = {}, .error = {}};
    auto made = transport::MakeTransport(name, options);
    if (made) {
      auto link = std::make_unique<Link>(*this, std::move(*made), name);
      if (Status started = link->transport->Start(link.get()); started.ok()) {
        offer.address = link->transport->address();
        Link* opened = link.get();
        opened->transport->Post([opened] { opened->probe.Open(); });
        links_.push_back(std::move(link));
      } else {
        offer.error = started.error().message;
      }
    } else {
      offer.error = made.error().message;
    }
    offers_.push_back(std::move(offer));
  }

  void CarryOut(Actions actions, std::size_t from) {
    for (std::size_t i = from; i < actions.size(); ++i) {
      if (const auto* use = std::get_if<action::UseTransport>(&actions[i])) {
        if (!MoveTo(use->name)) continue;
        // The rest belongs on the thread where the machine lives now.
        Run([this, rest = std::move(actions), i]() mutable { CarryOut(std::move(rest), i + 1); });
        return;
      }
      std::visit([this](auto& a) { Do(a); }, actions[i]);
    }
  }

  // True when the machine has to go to another thread.
  bool MoveTo(const std::string& name) {
    for (auto& link : links_) {
      for (const auto& [member, peer] : link->by_member) {
        if (link->name != name) link->transport->Close(peer, "the job uses another transport");
      }
    }
    const auto found = std::find_if(links_.begin(), links_.end(),
                                    [&](const auto& link) { return link->name == name; });
    LOCKSTEP_CHECK(found != links_.end(),
                   "the coordinator chose transport {}, which was not offered", name);
    buffers_.ForgetRegions();
    if (found->get() == home_.load()) return false;
    home_.store(found->get());
    return true;
  }

  Link& home() { return *home_.load(); }

  transport::Slice SliceOf(const BufferRange& range) {
    auto region = buffers_.Region(*home().transport, range.buffer);
    LOCKSTEP_CHECK(region.ok(), "{}", region.error().message);
    return {*region, range.range.first * sizeof(float), range.range.count * sizeof(float)};
  }

  void Do(action::ToCoordinator& a) {
    if (auto* reached = std::get_if<Reached>(&a.message)) AddMeasurements(*reached);
    setup_.to_coordinator(std::move(a.message), nullptr);
  }

  void AddMeasurements(Reached& reached) {
    for (PeerPath& path : reached.peers) {
      if (!path.reached) {
        spdlog::warn("worker {} is not reached: {}", path.peer.worker, path.error);
        continue;
      }
      if (const auto it = mapped_rate_.find(path.peer); path.mapped && it != mapped_rate_.end()) {
        path.gb_per_second = it->second;
      } else if (const auto m = home().measured.find(path.peer); m != home().measured.end()) {
        path.gb_per_second = m->second;
      }
      spdlog::info("worker {}: path {}, {:.2f} GB/s", path.peer.worker, path.path,
                   path.gb_per_second);
    }
  }

  void Do(action::ToPeer& a) {
    const auto peer = home().PeerOf(a.peer);
    if (!peer) return;  // went down; the machine hears of it
    for (const BufferRange& range : a.payload) {
      const auto* bytes =
          reinterpret_cast<const std::byte*>(buffers_.At(range.buffer) + range.range.first);
      a.bytes.insert(a.bytes.end(), bytes, bytes + range.range.count * sizeof(float));
    }
    if (!home().transport->Send(*peer, a.bytes)) {
      home().transport->Close(*peer, "its queue of messages is full: it does not read");
    }
  }

  void Do(action::UseTransport&) {}  // see CarryOut

  void Do(action::ConnectPeer& a) {
    home().transport->Connect(Identity(a.info.member), a.info.data_address);
  }

  void Do(action::MapPeer& a) {
    // Blocks for as long as the peer takes to answer, so not here, and not where sums are made.
    mapper_->Post([this, info = a.info] {
      event::PeerMapped mapped{.peer = info.member, .ok = false, .error = {}};
      auto arena = transport::MapPeer(info.mapping_address, Identity(setup_.machine.self),
                                      Identity(info.member), setup_.job_key, kMapTimeout);
      double rate = 0;
      if (arena) {
        mapped.ok = true;
        if (arena->blocks() > 0)
          rate = MeasureMapped(arena->data(0), std::min<std::uint64_t>(arena->bytes(0), 4u << 20));
        arenas_.Put(info.member, std::move(*arena));
      } else {
        mapped.error = arena.error().message;
      }
      Run([this, mapped = std::move(mapped), rate] {
        if (mapped.ok) mapped_rate_[mapped.peer] = rate;
        Handle(mapped);
      });
    });
  }

  void Do(action::UnmapPeer& a) {
    mapped_rate_.erase(a.peer);
    arenas_.Drop(a.peer);
  }

  void Do(action::ClosePeer& a) {
    if (const auto peer = home().PeerOf(a.peer)) home().transport->Close(*peer, a.reason);
  }

  void Do(action::Fetch& a) {
    const transport::PieceName name{.kind = a.piece.kind,
                                    .attempt = a.piece.attempt,
                                    .round = a.piece.round,
                                    .owner = a.piece.owner,
                                    .part = a.piece.part,
                                    .offset = a.piece.offset,
                                    .bytes = a.piece.bytes};
    const auto peer = home().PeerOf(a.peer);
    auto fetch = peer ? home().transport->Fetch(*peer, name, SliceOf(a.to))
                      : Result<transport::FetchId>(Error{ErrorCode::kClosed, "the peer is down"});
    if (fetch) {
      home().fetches.emplace(*fetch, a.fetch);
      fetch_ids_.emplace(a.fetch, *fetch);
    } else {
      // The machine keeps to the window, so this is a peer that is going down.
      Post(event::FetchDone{.fetch = a.fetch, .status = event::FetchStatus::kPeerDown});
    }
  }

  void Do(action::GiveUpFetch& a) {
    if (const auto found = fetch_ids_.find(a.fetch); found != fetch_ids_.end())
      home().transport->GiveUp(found->second);
  }

  void Do(action::StoreInline& a) {
    std::memcpy(buffers_.At(a.to.buffer) + a.to.range.first, a.bytes.data(), a.bytes.size());
  }

  void Do(action::OpenBlock& a) {
    if (buffers_.arena() == nullptr) return;
    const std::size_t block = buffers_.ArenaBlock(a.buffer);
    buffers_.arena()->BeginWrite(block);
    buffers_.arena()->Publish(block, a.generation);
    // The new generation is seen before any byte of the new content is.
    std::atomic_thread_fence(std::memory_order_seq_cst);
  }

  void Do(action::StartWork& a) { desk_.StartWork(&machine_.queue(), a); }
  void Do(action::WakeCompute&) { desk_.WakeCompute(); }
  void Do(action::VoidWork&) { desk_.VoidWork(); }
  void Do(action::EvaluateChunk& a) { desk_.Evaluate(a); }

  template <class Operation>
  void PostOperation(Operation& operation) {
    reduction_->Post(
        [this, operation = std::move(operation)] { Post(operations_.Run(operation)); });
  }
  void Do(action::Reduce& a) { PostOperation(a); }
  void Do(action::CopySums& a) { PostOperation(a); }
  void Do(action::Apply& a) { PostOperation(a); }
  void Do(action::CopyState& a) { PostOperation(a); }
  void Do(action::TakeSnapshot& a) { PostOperation(a); }
  void Do(action::DigestState& a) { PostOperation(a); }

  void Do(action::InitializeState&) {
    const std::uint64_t count = machine_.layout().parameter_count();
    setup_.initialize({buffers_.parameters(), count});
    for (std::uint32_t t = 1; t <= state_tensors_; ++t) {
      std::memset(buffers_.At({BufferKind::kState, t, {}}), 0, count * sizeof(float));
    }
  }

  void Do(action::StoreState& a) {
    auto* to = reinterpret_cast<std::byte*>(buffers_.At({BufferKind::kState, a.tensor, {}}));
    std::memcpy(to + a.offset, a.bytes.data(), a.bytes.size());
  }

  void Do(action::UploadChunk& a) {
    StateChunk chunk{
        .round = a.round, .tensor = a.tensor, .offset = a.offset, .last = a.last, .bytes = {}};
    const auto* from =
        reinterpret_cast<const std::byte*>(buffers_.snapshot(a.tensor, /*checkpoint=*/true)) +
        a.offset;
    chunk.bytes.assign(from, from + a.bytes);
    setup_.to_coordinator(std::move(chunk), [this] { Post(event::ChunkUploaded{}); });
  }

  void Do(action::SetTimer& a) {
    const std::uint64_t number = ++timer_;
    if (a.at == kNever) return;
    home().transport->PostAt(a.at, [this, number] {
      Run([this, number] {
        if (number == timer_) Handle(event::TimerDue{});
      });
    });
  }

  void Do(action::Slowdown& a) { setup_.slowdown(a.spec); }
  void Do(action::Exit& a) { desk_.End(a.reason, a.failed); }
  void Do(action::Log& a) { spdlog::info("{}", a.line); }

  friend class Link;

  const Setup setup_;
  WorkerBuffers& buffers_;
  ComputeDesk& desk_;
  PeerArenas arenas_;
  Operations operations_;
  StepMachine machine_;
  const std::uint32_t state_tensors_;
  std::vector<std::unique_ptr<Link>> links_;
  std::atomic<Link*> home_{nullptr};
  std::vector<TransportOffer> offers_;
  std::string mapping_address_;
  std::unique_ptr<transport::ArenaServer> arena_server_;
  std::unique_ptr<TaskThread> reduction_ = std::make_unique<TaskThread>("reduction");
  std::unique_ptr<TaskThread> mapper_ = std::make_unique<TaskThread>("mapper");
  std::map<MemberId, double> mapped_rate_;
  std::map<std::uint64_t, transport::FetchId> fetch_ids_;
  std::uint64_t timer_ = 0;
};

bool Link::Current() const { return plane_.IsHome(this); }

void Link::OnPeerUp(transport::PeerId peer, const transport::PeerIdentity& who,
                    const std::string& path) {
  const MemberId member = Member(who);
  if (by_member.count(member) != 0) {
    transport->Close(peer, "connected already");
    return;
  }
  by_member.emplace(member, peer);
  by_peer.emplace(peer, member);
  early_[peer];
  probe.Start(peer, [this, peer, member, path](double rate) {
    measured[member] = rate;
    // Not inside the transport's callback of a fetch, and where the machine lives.
    plane_.Run([this, peer, member, path] {
      if (!Current() || by_peer.count(peer) == 0) return;
      plane_.Handle(event::PeerUp{.peer = member, .path = path});
      auto early = std::move(early_[peer]);
      early_.erase(peer);
      for (const auto& bytes : early)
        plane_.Handle(event::FromPeer{.peer = member, .bytes = bytes});
    });
  });
}

void Link::OnConnectFailed(const transport::PeerIdentity& who, const Error& error) {
  if (Current()) plane_.Handle(event::ConnectFailed{.peer = Member(who), .reason = error.message});
}

void Link::OnPeerDown(transport::PeerId peer, const Error& reason) {
  probe.OnPeerDown(peer);
  early_.erase(peer);
  const auto found = by_peer.find(peer);
  if (found == by_peer.end()) return;  // a second connection that was closed
  const MemberId member = found->second;
  by_peer.erase(found);
  by_member.erase(member);
  if (Current()) plane_.Handle(event::PeerDown{.peer = member, .reason = reason.message});
}

void Link::OnMessage(transport::PeerId peer, std::span<const std::byte> bytes) {
  const auto found = by_peer.find(peer);
  if (found == by_peer.end()) return;
  if (const auto early = early_.find(peer); early != early_.end()) {
    early->second.emplace_back(bytes.begin(), bytes.end());
    return;
  }
  if (Current()) plane_.Handle(event::FromPeer{.peer = found->second, .bytes = bytes});
}

transport::ServeAnswer Link::OnFetch(transport::PeerId peer, const transport::PieceName& piece) {
  if (auto answer = probe.OnFetch(piece)) return *answer;
  const auto found = by_peer.find(peer);
  if (!Current() || found == by_peer.end()) return {};
  const Serve serve = plane_.machine().OnPieceAsked(found->second, {.kind = piece.kind,
                                                                    .attempt = piece.attempt,
                                                                    .round = piece.round,
                                                                    .owner = piece.owner,
                                                                    .part = piece.part,
                                                                    .offset = piece.offset,
                                                                    .bytes = piece.bytes});
  if (!serve.have) return {};
  return {.have = true, .slice = plane_.SliceOf(serve.from), .cookie = serve.cookie};
}

void Link::OnServed(transport::PeerId, std::uint64_t cookie) {
  if (cookie != ~std::uint64_t{0} && Current()) plane_.Handle(event::Served{.cookie = cookie});
}

void Link::OnFetchDone(transport::FetchId fetch, transport::FetchStatus status) {
  if (probe.OnFetchDone(fetch, status)) return;
  const auto found = fetches.find(fetch);
  if (found == fetches.end()) return;
  const std::uint64_t number = found->second;
  fetches.erase(found);
  plane_.fetch_ids_.erase(number);
  if (Current()) plane_.Handle(event::FetchDone{.fetch = number, .status = Translate(status)});
}

}  // namespace

Result<std::unique_ptr<DataPlane>> DataPlane::Start(Setup setup, const Layout& layout,
                                                    WorkerBuffers& buffers,
                                                    const Optimizer& optimizer, ComputeDesk& desk) {
  auto plane = std::make_unique<DataPlaneImpl>(std::move(setup), layout, buffers, optimizer, desk);
  if (Status opened = plane->Open(); !opened.ok()) return opened.error();
  return std::unique_ptr<DataPlane>(std::move(plane));
}

}  // namespace lockstep::worker
