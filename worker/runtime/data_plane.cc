#include "worker/runtime/data_plane.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <mutex>
#include <set>
#include <utility>

#include "base/log.h"
#include "transport/mapping/map_peer.h"
#include "transport/mapping/ordering.h"
#include "transport/staging/staged_transport.h"
#include "worker/compute/compute.h"
#include "worker/runtime/fetch_desk.h"

namespace lockstep::worker {
namespace {

// Of one peer, until its path is measured. Ten thousand announcements; with the floats that ride
// along it is as much as a peer may queue before its transport refuses.
constexpr std::size_t kEarlyBytes = 4u << 20;
constexpr std::size_t kEarlyOverhead = 64;  // what keeping a message costs beside its bytes

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

class DataPlaneImpl;

// One transport and the connections over it. All of it belongs to the transport's data thread, but
// for the name and the transport's Post.
class Link final : public transport::Handler {
 public:
  Link(DataPlaneImpl& plane, std::unique_ptr<transport::Transport> made, std::string link_name,
       transport::Capabilities of_library, ExchangeMemory& memory, std::uint64_t piece_bytes,
       Duration patience);

  void OnPeerUp(transport::PeerId peer, const transport::PeerIdentity& who,
                const std::string& path) override;
  void OnConnectFailed(const transport::PeerIdentity& who, const Error& error) override;
  void OnPeerDown(transport::PeerId peer, const Error& reason) override;
  void OnMessage(transport::PeerId peer, std::span<const std::byte> bytes) override;
  transport::ServeAnswer OnFetch(transport::PeerId peer, const transport::PieceName& name) override;
  void OnServed(transport::PeerId peer, std::uint64_t cookie) override;
  void OnFetchDone(transport::FetchId fetch, transport::FetchStatus status) override;

  // The machine lives here from now on: it hears of the peers that came up before, and of what
  // waited for it.
  void BecomeHome();
  // The machine moves to another link.
  void Leave() { home_ = false; }
  bool IsHome() const { return home_; }
  std::optional<transport::PeerId> PeerOf(const MemberId& member) const {
    const auto found = by_member.find(member);
    return found == by_member.end() ? std::nullopt : std::optional(found->second);
  }
  void CloseAll(const std::string& reason);

  const std::string name;
  const transport::Capabilities library;  // of the transport as its library has it
  const std::unique_ptr<transport::Transport> transport;
  Probe probe;
  FetchDesk fetches;
  std::map<MemberId, transport::PeerId> by_member;  // up, one for each member
  std::map<MemberId, double> measured;              // GB/s

 private:
  struct Up {
    MemberId member;
    std::string path;
    bool measured = false;
    bool announced = false;
    // What it said before the machine was told of it: messages may overtake the probe of the peer
    // that sends them. At most kEarlyBytes.
    std::vector<std::vector<std::byte>> early;
    std::size_t early_bytes = 0;
  };
  void Announce(transport::PeerId peer);

  std::map<transport::PeerId, Up> up_;  // the same as by_member
  bool home_ = false;
  DataPlaneImpl& plane_;
};

class DataPlaneImpl final : public DataPlane {
 public:
  DataPlaneImpl(Setup setup, const Layout& layout, WorkerBuffers& buffers,
                const Optimizer& optimizer, ComputeDesk& desk)
      : setup_(std::move(setup)),
        buffers_(buffers),
        memory_(buffers.memory()),
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
      auto server = transport::ArenaServer::Start(
          *buffers_.arena(), setup_.job_key,
          {.self = Identity(setup_.machine.self), .handshake_timeout = setup_.timeouts.connect});
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
    Link* first = links_.front().get();
    first->transport->Post([first] { first->BecomeHome(); });
    home_.store(first);
    LogMachine(first->library);
    spdlog::info(
        "for each peer at most {} fetches of {} KiB under way or waiting, {} MiB of messages to "
        "it, "
        "{} MiB of messages from it before its path is measured",
        setup_.machine.fetch_window, setup_.machine.piece_bytes >> 10,
        transport::Options{}.send_queue_bytes >> 20, kEarlyBytes >> 20);
    return {};
  }

  const std::vector<TransportOffer>& offers() const override { return offers_; }
  const std::string& mapping_address() const override { return mapping_address_; }

  void Post(Event event) override {
    Run([this, event = std::move(event)] { Handle(event); });
  }

  // Runs a task where the machine lives, in order with all other such tasks, also while the machine
  // moves. Any thread.
  void Run(std::function<void()> task) {
    {
      const std::lock_guard lock(mutex_);
      tasks_.push_back(std::move(task));
    }
    // A link that is not the home (any more, or yet) leaves it to the one that becomes it.
    Link* link = home_.load();
    link->transport->Post([this, link] {
      if (link->IsHome()) RunNext();
    });
  }

  // On the machine's thread: runs the first task, if there is one.
  void RunNext() {
    std::function<void()> task;
    {
      const std::lock_guard lock(mutex_);
      if (tasks_.empty()) return;
      task = std::move(tasks_.front());
      tasks_.pop_front();
    }
    task();
  }
  std::size_t WaitingTasks() {
    const std::lock_guard lock(mutex_);
    return tasks_.size();
  }

  // On the machine's thread.
  void Handle(const Event& event) {
    NoteHosts(event);
    Actions actions = machine_.Step(MonotonicNow(), event);
    EndIfDeviceFails([&] { CarryOut(std::move(actions), 0); });
  }

  StepMachine& machine() { return machine_; }
  WorkerBuffers& buffers() { return buffers_; }

 private:
  // A device that fails ends this worker's part in the job.
  template <class Action>
  void EndIfDeviceFails(Action action) {
    try {
      action();
    } catch (const DeviceError& error) {
      desk_.End(error.what(), /*failed=*/true);
    }
  }

  void OpenLink(const std::string& name) {
    transport::Options options;
    options.self = Identity(setup_.machine.self);
    options.job_key = setup_.job_key;
    options.listen_host = setup_.data_host;
    options.fetch_window = setup_.machine.fetch_window;
    options.connect_timeout = setup_.timeouts.connect;
    TransportOffer offer{.name = name, .address = {}, .error = {}};
    auto made = transport::MakeTransport(name, options);
    transport::Capabilities library;
    if (made) library = (*made)->capabilities();
    if (made && !memory_.on_host() && !(*made)->capabilities().cuda_memory) {
      made = transport::MakeStagedTransport(std::move(*made), *memory_.copies(),
                                            setup_.machine.piece_bytes);
    }
    if (made) {
      auto link = std::make_unique<Link>(*this, std::move(*made), name, std::move(library), memory_,
                                         setup_.machine.piece_bytes, setup_.timeouts.fetch);
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
        Link* to = Choose(use->name);
        if (to == &home()) continue;
        home().Leave();
        home_.store(to);
        // The rest belongs on the thread where the machine lives from now on, before any event.
        to->transport->Post([this, to, rest = std::move(actions), i]() mutable {
          EndIfDeviceFails([&] { CarryOut(std::move(rest), i + 1); });
          to->BecomeHome();
        });
        return;
      }
      std::visit([this](auto& a) { Do(a); }, actions[i]);
    }
  }

  Link* Choose(const std::string& name) {
    Link* chosen = nullptr;
    for (auto& link : links_) {
      if (link->name == name) {
        chosen = link.get();
      } else {
        link->transport->Post(
            [other = link.get()] { other->CloseAll("the job uses another transport"); });
      }
    }
    LOCKSTEP_CHECK(chosen != nullptr, "the coordinator chose transport {}, which was not offered",
                   name);
    buffers_.ForgetRegions();
    return chosen;
  }

  Link& home() { return *home_.load(); }

  transport::Slice SliceOf(const BufferRange& range) {
    auto region = buffers_.Region(*home().transport, range.buffer);
    LOCKSTEP_CHECK(region.ok(), "{}", region.error().message);
    return {*region, range.range.first * sizeof(float), range.range.count * sizeof(float)};
  }

  void Do(action::ToCoordinator& a) {
    if (auto* reached = std::get_if<Reached>(&a.message)) {
      if (const std::string unfit = Judge(*reached); !unfit.empty()) {
        setup_.unfit(unfit);
        return;
      }
    }
    setup_.to_coordinator(std::move(a.message), nullptr);
  }

  // What of this machine decides over paths, once.
  void LogMachine(const transport::Capabilities& library) {
    namespace paths = transport::paths;
    spdlog::info("{}{}{} carries {}", library.name, library.version.empty() ? "" : " ",
                 library.version, library.cuda_memory ? "host and GPU memory" : "host memory");
    if (!setup_.paths.gpu) return;
    std::string ports;
    for (const paths::RdmaPort* port :
         paths::NearestPorts(setup_.paths.machine, setup_.paths.gpu_pci)) {
      ports += (ports.empty() ? "" : ", ") + port->name();
    }
    spdlog::info("GPU {}: nearest RDMA port {}; {}",
                 setup_.paths.gpu_pci.empty() ? "at an unknown place" : setup_.paths.gpu_pci,
                 ports.empty() ? "none" : ports,
                 setup_.paths.machine.nvidia.peermem ? "nvidia_peermem is loaded"
                 : setup_.paths.machine.dmabuf()     ? "the driver has dma-buf"
                                                     : "no nvidia_peermem and no dma-buf");
    if (const auto reason = paths::WhyNoGpuMemory(setup_.paths, library)) {
      spdlog::warn("staged through host memory: {}; {}", reason.why, reason.remedy);
    }
  }

  void NoteHosts(const Event& event) {
    const auto* message = std::get_if<event::FromCoordinator>(&event);
    const auto* form = message == nullptr ? nullptr : std::get_if<Form>(&message->message);
    if (form == nullptr) return;
    for (const auto* list : {&form->connect_to, &form->expect}) {
      for (const PeerInfo& info : *list) {
        if (info.host_id == setup_.machine.host_id) on_this_host_.insert(info.member);
      }
    }
  }

  // Adds what was measured, and what it means for this machine. Returns why this worker is unfit;
  // empty: it is not.
  std::string Judge(Reached& reached) {
    namespace paths = transport::paths;
    std::string unfit;
    for (PeerPath& path : reached.peers) {
      const bool same_host = on_this_host_.contains(path.peer);
      if (!path.reached) {
        spdlog::warn("worker {} is not reached: {}", path.peer.worker, path.error);
        continue;
      }
      if (const auto it = mapped_rate_.find(path.peer); path.mapped && it != mapped_rate_.end()) {
        path.gb_per_second = it->second;
      } else if (const auto m = home().measured.find(path.peer); m != home().measured.end()) {
        path.gb_per_second = m->second;
      }
      const paths::Link link{.path = path.path, .mapped = path.mapped, .same_host = same_host};
      const paths::Finding finding = paths::Judge(setup_.paths, home().library, link);
      path.path = finding.path;
      spdlog::info("worker {}: path {}, {}", path.peer.worker, path.path,
                   RateText(path.gb_per_second));
      if (finding.lacking) {
        spdlog::warn("worker {}: {} was to be expected, but {}; {}", path.peer.worker,
                     paths::Name(finding.expected), finding.lacking.why, finding.lacking.remedy);
      } else if (finding.advice) {
        spdlog::warn("worker {}: {}; {}", path.peer.worker, finding.advice.why,
                     finding.advice.remedy);
      }
      if (setup_.require_gpudirect && unfit.empty() && !same_host &&
          finding.had != paths::Way::kGpuDirect) {
        const paths::Reason reason = paths::WhyNotGpuDirect(setup_.paths, home().library, link);
        unfit = fmt::format("--require-gpudirect: worker {} is reached by {}: {}; {}",
                            path.peer.worker, path.path, reason.why, reason.remedy);
      }
    }
    return unfit;
  }

  void Do(action::ToPeer& a) {
    const auto peer = home().PeerOf(a.peer);
    if (!peer) return;  // went down; the machine hears of it
    for (const BufferRange& range : a.payload) {
      const std::size_t bytes = range.range.count * sizeof(float);
      a.bytes.resize(a.bytes.size() + bytes);
      memory_.ToHost(a.bytes.data() + a.bytes.size() - bytes,
                     buffers_.At(range.buffer) + range.range.first, bytes);
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
    const std::uint64_t number = mapping_[a.info.member] = ++last_mapping_;
    // Blocks for as long as the peer takes to answer, so not here, and not where sums are made.
    mapper_->Post([this, number, info = a.info] {
      event::PeerMapped mapped{.peer = info.member, .ok = false, .error = {}};
      auto arena = transport::MapPeer(info.mapping_address, Identity(setup_.machine.self),
                                      Identity(info.member), setup_.job_key, setup_.timeouts.map);
      double rate = 0;
      std::shared_ptr<transport::PeerArena> shared;
      if (arena) {
        mapped.ok = true;
        if (arena->blocks() > 0)
          rate = MeasureMapped(arena->data(0), std::min<std::uint64_t>(arena->bytes(0), 4u << 20));
        shared = std::make_shared<transport::PeerArena>(std::move(*arena));
      } else {
        mapped.error = arena.error().message;
      }
      Run([this, number, mapped = std::move(mapped), shared, rate] {
        // Unmapped, or asked for again, meanwhile: nobody waits for this one.
        const auto wanted = mapping_.find(mapped.peer);
        if (wanted == mapping_.end() || wanted->second != number) return;
        mapping_.erase(wanted);
        if (shared) {
          // Operations that read an older mapping keep it until they end.
          arenas_.Put(mapped.peer, shared);
          mapped_rate_[mapped.peer] = rate;
        }
        Handle(mapped);
      });
    });
  }

  void Do(action::UnmapPeer& a) {
    mapping_.erase(a.peer);
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
    if (const auto peer = home().PeerOf(a.peer)) {
      home().fetches.Fetch(*peer, a.fetch, name, SliceOf(a.to));
    } else {
      home().fetches.Refuse(a.fetch);
    }
  }

  void Do(action::GiveUpFetch& a) { home().fetches.GiveUp(a.fetch); }

  void Do(action::StoreInline& a) {
    memory_.FromHost(buffers_.At(a.to.buffer) + a.to.range.first, a.bytes.data(), a.bytes.size());
  }

  void Do(action::OpenBlock& a) {
    if (buffers_.arena() == nullptr) return;
    const std::size_t block = buffers_.ArenaBlock(a.buffer);
    buffers_.arena()->BeginWrite(block);
    buffers_.arena()->Publish(block, a.generation);
    // The new generation is seen before any byte of the new content is.
    transport::StoreBeforeLaterWrites();
  }

  void Do(action::StartWork& a) { desk_.StartWork(&machine_.queue(), a); }
  void Do(action::WakeCompute&) { desk_.WakeCompute(); }
  void Do(action::VoidWork&) { desk_.VoidWork(); }
  void Do(action::EvaluateChunk& a) { desk_.Evaluate(a); }

  template <class Operation>
  void PostOperation(Operation& operation) {
    reduction_->Post([this, operation = std::move(operation)] {
      EndIfDeviceFails([&] { Post(operations_.Run(operation)); });
    });
  }
  void Do(action::Reduce& a) { PostOperation(a); }
  void Do(action::CopySums& a) { PostOperation(a); }
  void Do(action::Apply& a) { PostOperation(a); }
  void Do(action::CopyState& a) { PostOperation(a); }
  void Do(action::TakeSnapshot& a) { PostOperation(a); }
  void Do(action::DigestState& a) { PostOperation(a); }

  void Do(action::InitializeState&) {
    const std::uint64_t count = machine_.layout().parameter_count();
    if (memory_.on_host()) {
      setup_.initialize({buffers_.parameters(), count});
    } else {
      std::vector<float> parameters(count);
      setup_.initialize(parameters);
      memory_.FromHost(buffers_.parameters(), parameters.data(), count * sizeof(float));
    }
    for (std::uint32_t t = 1; t <= state_tensors_; ++t) {
      memory_.Zero(buffers_.At({BufferKind::kState, t, {}}), count);
    }
  }

  void Do(action::StoreState& a) {
    auto* to = reinterpret_cast<std::byte*>(buffers_.At({BufferKind::kState, a.tensor, {}}));
    memory_.FromHost(to + a.offset, a.bytes.data(), a.bytes.size());
  }

  void Do(action::UploadChunk& a) {
    StateChunk chunk{
        .round = a.round, .tensor = a.tensor, .offset = a.offset, .last = a.last, .bytes = {}};
    const auto* from = reinterpret_cast<const std::byte*>(
                           buffers_.snapshot(a.tensor, action::SnapshotKind::kCheckpoint)) +
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

  void Do(action::Slowdown& a) { setup_.slowdown(a.specs); }
  void Do(action::Exit& a) { desk_.End(a.reason, a.failed); }
  void Do(action::Log& a) { spdlog::info("{}", a.line); }

  friend class Link;

  const Setup setup_;
  WorkerBuffers& buffers_;
  ExchangeMemory& memory_;
  ComputeDesk& desk_;
  PeerArenas arenas_;
  Operations operations_;
  StepMachine machine_;
  const std::uint32_t state_tensors_;
  std::vector<std::unique_ptr<Link>> links_;
  std::atomic<Link*> home_{nullptr};  // where the machine lives or is about to
  std::mutex mutex_;
  std::deque<std::function<void()>> tasks_;  // guarded by mutex_
  std::vector<TransportOffer> offers_;
  std::string mapping_address_;
  std::unique_ptr<transport::ArenaServer> arena_server_;
  std::unique_ptr<TaskThread> reduction_ = std::make_unique<TaskThread>("reduction");
  std::unique_ptr<TaskThread> mapper_ = std::make_unique<TaskThread>("mapper");
  std::set<MemberId> on_this_host_;  // as the Forms said
  std::map<MemberId, double> mapped_rate_;
  std::map<MemberId, std::uint64_t> mapping_;  // asked for: the number of the last time
  std::uint64_t last_mapping_ = 0;
  std::uint64_t timer_ = 0;
};

Link::Link(DataPlaneImpl& plane, std::unique_ptr<transport::Transport> made, std::string link_name,
           transport::Capabilities of_library, ExchangeMemory& memory, std::uint64_t piece_bytes,
           Duration patience)
    : name(std::move(link_name)),
      library(std::move(of_library)),
      transport(std::move(made)),
      probe(*transport, memory, piece_bytes),
      fetches(*transport, patience,
              [this](std::uint64_t fetch, event::FetchStatus status) {
                if (home_) plane_.Handle(event::FetchDone{.fetch = fetch, .status = status});
              }),
      plane_(plane) {}

void Link::BecomeHome() {
  home_ = true;
  std::vector<transport::PeerId> peers;
  for (const auto& [peer, up] : up_) peers.push_back(peer);
  for (const transport::PeerId peer : peers) Announce(peer);
  for (std::size_t tasks = plane_.WaitingTasks(); tasks > 0 && home_; --tasks) plane_.RunNext();
}

void Link::OnPeerUp(transport::PeerId peer, const transport::PeerIdentity& who,
                    const std::string& path) {
  const MemberId member = Member(who);
  if (by_member.count(member) != 0) {
    transport->Close(peer, "connected already");
    return;
  }
  by_member.emplace(member, peer);
  up_[peer] = Up{.member = member, .path = path, .early = {}};
  probe.Start(peer, [this, peer, member](double rate) {
    measured[member] = rate;
    up_.at(peer).measured = true;
    // Not inside the transport's callback of a fetch.
    transport->Post([this, peer] {
      if (home_) Announce(peer);
    });
  });
}

void Link::Announce(transport::PeerId peer) {
  const auto found = up_.find(peer);
  if (found == up_.end() || !found->second.measured || found->second.announced) return;
  Up& up = found->second;
  up.announced = true;
  const MemberId member = up.member;
  const auto early = std::exchange(up.early, {});
  plane_.Handle(event::PeerUp{.peer = member, .path = up.path});
  for (const auto& bytes : early) plane_.Handle(event::FromPeer{.peer = member, .bytes = bytes});
}

void Link::CloseAll(const std::string& reason) {
  for (const auto& [member, peer] : by_member) transport->Close(peer, reason);
}

void Link::OnConnectFailed(const transport::PeerIdentity& who, const Error& error) {
  if (home_) plane_.Handle(event::ConnectFailed{.peer = Member(who), .reason = error.message});
}

void Link::OnPeerDown(transport::PeerId peer, const Error& reason) {
  probe.OnPeerDown(peer);
  fetches.OnPeerDown(peer);
  const auto found = up_.find(peer);
  if (found == up_.end()) return;  // a second connection that was closed
  const MemberId member = found->second.member;
  up_.erase(found);
  by_member.erase(member);
  if (home_) plane_.Handle(event::PeerDown{.peer = member, .reason = reason.message});
}

void Link::OnMessage(transport::PeerId peer, std::span<const std::byte> bytes) {
  const auto found = up_.find(peer);
  if (found == up_.end()) return;
  Up& up = found->second;
  if (up.announced) {
    if (home_) plane_.Handle(event::FromPeer{.peer = up.member, .bytes = bytes});
    return;
  }
  up.early_bytes += bytes.size() + kEarlyOverhead;
  if (up.early_bytes > kEarlyBytes) {
    transport->Close(peer, "it said too much before it was known");
    return;
  }
  up.early.emplace_back(bytes.begin(), bytes.end());
}

transport::ServeAnswer Link::OnFetch(transport::PeerId peer, const transport::PieceName& piece) {
  if (auto answer = probe.OnFetch(piece)) return *answer;
  const auto found = up_.find(peer);
  if (!home_ || found == up_.end()) return {};
  const Serve serve = plane_.machine().OnPieceAsked(found->second.member, {.kind = piece.kind,
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
  if (cookie != ~std::uint64_t{0} && home_) plane_.Handle(event::Served{.cookie = cookie});
}

void Link::OnFetchDone(transport::FetchId fetch, transport::FetchStatus status) {
  if (!probe.OnFetchDone(fetch, status)) fetches.OnFetchDone(fetch, status);
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
