#include "worker/runtime/data_plane.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <iterator>
#include <map>
#include <mutex>
#include <optional>
#include <utility>

#include "base/log.h"
#include "transport/mapping/arena_server.h"
#include "transport/mapping/ordering.h"
#include "transport/staging/staged_transport.h"
#include "transport/tcp_sockets.h"
#include "worker/compute/compute.h"
#include "worker/runtime/link.h"
#include "worker/runtime/open_ports.h"
#include "worker/runtime/operations.h"
#include "worker/runtime/path_log.h"
#include "worker/runtime/peer_mapper.h"
#include "worker/runtime/task_thread.h"

namespace lockstep::worker {
namespace {

class DataPlaneImpl final : public DataPlane, public LinkUser {
 public:
  DataPlaneImpl(Setup setup, const Layout& layout, WorkerBuffers& buffers,
                const Optimizer& optimizer, ComputeQueue& desk)
      : setup_(std::move(setup)),
        buffers_(buffers),
        memory_(buffers.memory()),
        desk_(desk),
        operations_(layout, buffers, arenas_, optimizer),
        path_log_(setup_.paths, setup_.require_gpudirect),
        mapper_(setup_.machine.self, setup_.job_key, setup_.timeouts.map, memory_, arenas_,
                {.machine = [this](std::function<void()> task) { Run(std::move(task)); },
                 .reduction =
                     [this](std::function<void()> task) {
                       reduction_->Post([this, task = std::move(task)] { EndIfDeviceFails(task); });
                     }}),
        layout_(layout),
        state_tensors_(static_cast<std::uint32_t>(optimizer.state_names().size())) {}

  ~DataPlaneImpl() override {
    // No callback may find a half-destroyed object: the transports end first, then the threads that
    // post to them and to each other.
    closing_.reset();
    for (auto& link : links_) link->transport->Stop();
    mapper_.Stop();
    reduction_.reset();
  }

  Status Open() {
    no_arena_ = setup_.no_arena;
    if (buffers_.arena() != nullptr) {
      auto server = transport::ArenaServer::Start(
          *buffers_.arena(), setup_.job_key,
          {.self = Identity(setup_.machine.self), .handshake_timeout = setup_.timeouts.connect});
      if (server) {
        arena_server_ = std::move(*server);
        mapping_address_ = arena_server_->address();
      } else {
        no_arena_ = server.error().message;
        spdlog::warn("no mapping for peers on this host: {}", no_arena_);
      }
    }
    for (const transport::paths::Choice& choice : setup_.transports) OpenLink(choice);
    if (links_.empty()) {
      std::string reasons;
      for (const TransportOffer& offer : offers_)
        reasons += fmt::format("{}{}: {}", reasons.empty() ? "" : "; ", offer.name, offer.error);
      return Error{ErrorCode::kUnavailable,
                   fmt::format("no transport can be used here ({})", reasons)};
    }
    MachineConfig machine = setup_.machine;
    for (const auto& link : links_) machine.transports.push_back(link->name);
    machine_.emplace(std::move(machine), layout_);
    Link* first = links_.front().get();
    first->transport->Post([first] { first->BecomeHome(); });
    home_.store(first);
    path_log_.Machine(first->library);
    open_.arena = mapping_address_;
    spdlog::info("{}", Describe(open_));
    if (open_.ucx_listens) {
      spdlog::warn("{}", UcxWarning(open_, setup_.paths.machine.AnyActivePort()));
    }
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
  void RunNext() override {
    std::function<void()> task;
    {
      const std::lock_guard lock(mutex_);
      if (tasks_.empty()) return;
      task = std::move(tasks_.front());
      tasks_.pop_front();
    }
    task();
  }
  std::size_t WaitingTasks() override {
    const std::lock_guard lock(mutex_);
    return tasks_.size();
  }

  // On the machine's thread.
  void Handle(const Event& event) override {
    NoteHosts(event);
    if (const auto* message = std::get_if<event::FromCoordinator>(&event);
        message != nullptr && std::holds_alternative<lockstep::Start>(message->message)) {
      CloseUnusedLinks();
    }
    Actions actions = machine_->Step(MonotonicNow(), event);
    EndIfDeviceFails([&] { CarryOut(std::move(actions), 0); });
  }

  transport::ServeAnswer Serve(const MemberId& peer, const transport::PieceName& piece) override {
    const worker::Serve serve = machine_->OnPieceAsked(peer, {.kind = piece.kind,
                                                              .attempt = piece.attempt,
                                                              .round = piece.round,
                                                              .owner = piece.owner,
                                                              .part = piece.part,
                                                              .offset = piece.offset,
                                                              .bytes = piece.bytes});
    if (!serve.have) return {};
    return {.have = true, .slice = SliceOf(serve.from), .cookie = serve.cookie};
  }

 private:
  // A device that fails ends this worker's part in the job.
  template <class Action>
  void EndIfDeviceFails(Action action) {
    try {
      action();
    } catch (const DeviceError& error) {
      desk_.End({.reason = error.what(), .failed = true});
    }
  }

  // Adds the addresses on which the process listens afterwards and did not before.
  void OpenLink(const transport::paths::Choice& choice) {
    const std::string& name = choice.name;
    if (choice.maker.empty()) {
      offers_.push_back({.name = name, .address = {}, .error = choice.why});
      return;
    }
    const std::vector<std::string> before = transport::ListeningAddresses();
    transport::Options options;
    options.self = Identity(setup_.machine.self);
    options.job_key = setup_.job_key;
    options.listen_host = setup_.data_host;
    options.fetch_window = setup_.machine.fetch_window;
    options.connect_timeout = setup_.timeouts.connect;
    options.silence_timeout = setup_.timeouts.unacknowledged;
    options.encryption = setup_.encryption;
    TransportOffer offer{.name = name, .address = {}, .error = {}};
    auto made = transport::MakeTransport(choice.maker, options);
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
        std::ranges::set_difference(
            transport::ListeningAddresses(), before,
            std::back_inserter(choice.maker == "tcp" ? open_.tcp : open_.ucx));
        open_.ucx_listens = open_.ucx_listens || choice.maker == "ucx";
        open_.rdma = open_.rdma || choice.maker == "ucx-rdma";
      } else {
        offer.error = started.error().message;
      }
    } else {
      offer.error = made.error().message;
    }
    offers_.push_back(std::move(offer));
  }

  // The job has begun, over the home link and for good. What else was offered is open in vain.
  void CloseUnusedLinks() {
    for (auto& link : links_) {
      if (link.get() == &home() || link->closed) continue;
      link->closed = true;
      spdlog::info("{} is closed: the job uses {}", link->name, home().name);
      if (!closing_) closing_ = std::make_unique<TaskThread>("closing");
      closing_->Post([unused = link.get()] { unused->transport->Stop(); });
    }
  }

  void CarryOut(Actions actions, std::size_t from) {
    for (std::size_t i = from; i < actions.size(); ++i) {
      if (const auto* use = std::get_if<action::UseTransport>(&actions[i])) {
        Link* to = Choose(use->name);
        if (to == nullptr) {
          desk_.End({.reason = fmt::format("the coordinator chose the transport '{}', which this "
                                           "worker does not offer (any more)",
                                           use->name),
                     .failed = true});
          return;
        }
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

  // Null: there is none of this name that is open.
  Link* Choose(const std::string& name) {
    Link* chosen = nullptr;
    for (auto& link : links_) {
      if (link->name == name && !link->closed) chosen = link.get();
    }
    if (chosen == nullptr) return nullptr;
    for (auto& link : links_) {
      if (link.get() == chosen) continue;
      link->transport->Post(
          [other = link.get()] { other->CloseAll("the job uses another transport"); });
    }
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

  void NoteHosts(const Event& event) {
    const auto* message = std::get_if<event::FromCoordinator>(&event);
    const auto* form = message == nullptr ? nullptr : std::get_if<Form>(&message->message);
    if (form == nullptr) return;
    for (const auto* list : {&form->connect_to, &form->expect}) {
      for (const PeerInfo& info : *list) {
        if (info.host_id != setup_.machine.host_id) continue;
        on_this_host_[info.member] = {.has_arena = !info.mapping_address.empty()};
      }
    }
  }

  std::string WhyNotMapped(const PeerPath& path) const {
    const auto peer = on_this_host_.find(path.peer);
    if (peer == on_this_host_.end() || path.mapped) return {};
    if (!no_arena_.empty()) return no_arena_;
    if (!peer->second.has_arena) return "it has no memory to map; its log says why";
    const std::string why = mapper_.WhyNot(path.peer);
    return why.empty() ? "it does not map this worker's memory; its log says why" : why;
  }

  // Adds what was measured, and what it means for this machine. Returns why this worker is unfit;
  // empty: it is not.
  std::string Judge(Reached& reached) {
    std::string unfit;
    for (PeerPath& path : reached.peers) {
      const auto mapped = mapper_.Rate(path.peer);
      path.gb_per_second = path.mapped && mapped ? *mapped : home().Measured(path.peer);
      std::string reason =
          path_log_.Peer(home().library, home().PathTo(path.peer),
                         on_this_host_.contains(path.peer), WhyNotMapped(path), path);
      if (unfit.empty()) unfit = std::move(reason);
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
    mapper_.Map(a.info, [this](const event::PeerMapped& mapped) { Handle(mapped); });
  }

  void Do(action::UnmapPeer& a) { mapper_.Unmap(a.peer); }

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

  void Do(action::StartWork& a) { desk_.StartWork(&machine_->queue(), a); }
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
  void Do(action::DigestReplica& a) { PostOperation(a); }

  void Do(action::InitializeState&) {
    const std::uint64_t count = machine_->layout().parameter_count();
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
        if (number == timer_) Handle(event::TimerDue{home().LastHeard()});
      });
    });
  }

  void Do(action::Slowdown& a) { setup_.slowdown(a.specs); }
  void Do(action::Exit& a) {
    desk_.End({.reason = a.reason,
               .failed = a.failed,
               .left = a.left,
               .final_parameters = a.not_final.empty(),
               .params_digest = a.params_digest,
               .not_final = a.not_final});
  }
  void Do(action::Log& a) { spdlog::info("{}", a.line); }

  const Setup setup_;
  WorkerBuffers& buffers_;
  ExchangeMemory& memory_;
  ComputeQueue& desk_;
  PeerArenas arenas_;
  Operations operations_;
  const PathLog path_log_;
  PeerMapper mapper_;
  const Layout layout_;
  std::optional<StepMachine> machine_;  // from Open on
  const std::uint32_t state_tensors_;
  std::vector<std::unique_ptr<Link>> links_;
  std::atomic<Link*> home_{nullptr};  // where the machine lives or is about to
  std::mutex mutex_;
  std::deque<std::function<void()>> tasks_;  // guarded by mutex_
  std::vector<TransportOffer> offers_;
  OpenPorts open_;
  std::string mapping_address_;
  std::unique_ptr<transport::ArenaServer> arena_server_;
  std::unique_ptr<TaskThread> reduction_ = std::make_unique<TaskThread>("reduction");
  std::unique_ptr<TaskThread> closing_;  // ends transports; null: there were none to end
  struct Neighbour {
    bool has_arena = false;
  };
  std::map<MemberId, Neighbour> on_this_host_;  // as the Forms said
  std::string no_arena_;                        // why peers cannot map this worker's memory
  std::uint64_t timer_ = 0;
};

}  // namespace

Result<std::unique_ptr<DataPlane>> DataPlane::Start(Setup setup, const Layout& layout,
                                                    WorkerBuffers& buffers,
                                                    const Optimizer& optimizer,
                                                    ComputeQueue& desk) {
  auto plane = std::make_unique<DataPlaneImpl>(std::move(setup), layout, buffers, optimizer, desk);
  if (Status opened = plane->Open(); !opened.ok()) return opened.error();
  return std::unique_ptr<DataPlane>(std::move(plane));
}

}  // namespace lockstep::worker
