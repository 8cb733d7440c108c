#include "worker/runtime/data_plane.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "base/log.h"
#include "transport/mapping/arena_server.h"
#include "transport/mapping/ordering.h"
#include "worker/compute/compute.h"
#include "worker/runtime/open_ports.h"
#include "worker/runtime/operation_order.h"
#include "worker/runtime/operations.h"
#include "worker/runtime/path_log.h"
#include "worker/runtime/peer_mapper.h"
#include "worker/runtime/task_thread.h"
#include "worker/runtime/transport_set.h"

namespace lockstep::worker {
namespace {

// A device's copies may hold its thread up.
TransportSet::Setup TransportsOf(const DataPlane::Setup& setup, const ExchangeMemory& memory) {
  transport::Options options;
  options.self = setup.core.self;
  options.job_key = setup.job_key;
  options.listen_host = setup.data_host;
  options.fetch_window = setup.core.fetch_window;
  options.connect_timeout = setup.timeouts.connect;
  options.silence_timeout = setup.timeouts.unacknowledged;
  options.encryption = setup.encryption;
  options.connections = setup.connections;
  options.members = setup.members;
  if (memory.on_host()) options.network = setup.network;
  return {std::move(options), setup.core.piece_bytes, setup.timeouts.fetch};
}

// An operation that touches no more than this is done sooner by the data thread itself: it lies in
// the caches there, and a handful of wake-ups takes longer. It keeps the data thread for some
// tenths of a millisecond at most.
constexpr std::uint64_t kSmallBytes = 2u << 20;

class DataPlaneImpl final : public DataPlane, public TransportUser {
 public:
  DataPlaneImpl(Setup setup, const Layout& layout, WorkerBuffers& buffers,
                const Optimizer& optimizer, ComputeQueue& compute)
      : setup_(std::move(setup)),
        buffers_(buffers),
        memory_(buffers.memory()),
        compute_(compute),
        operations_(layout, buffers, arenas_, optimizer, setup_.rounding_seed, setup_.seed),
        transports_(*this, memory_, TransportsOf(setup_, memory_)),
        path_log_({.facts = setup_.paths,
                   .require_gpudirect = setup_.require_gpudirect,
                   .host_id = setup_.core.host_id}),
        mapper_(setup_.core.self, setup_.job_key, setup_.timeouts.map, memory_, arenas_,
                {.core = [this](std::function<void()> task) { transports_.Run(std::move(task)); },
                 .reduction = OnReduction()}),
        order_({.own = [this](std::function<void()> task) { transports_.Run(std::move(task)); },
                .other = OnReduction()},
               [this](const event::OpDone& done) { Handle(done); }),
        round_clock_(setup_.round_times, layout.number_bytes()),
        layout_(layout),
        state_tensors_(static_cast<std::uint32_t>(optimizer.state_names().size())),
        crew_size_(setup_.threads) {}

  ~DataPlaneImpl() override {
    // No callback may find a half-destroyed object: the transports end first, then the threads that
    // post to them and to each other.
    transports_.Stop();
    mapper_.Stop();
    reduction_.reset();
  }

  Status Open() {
    path_log_.NoArena(setup_.no_arena);
    if (buffers_.arena() != nullptr) {
      auto server = transport::ArenaServer::Start(*buffers_.arena(), setup_.job_key,
                                                  {.self = setup_.core.self,
                                                   .members = setup_.members,
                                                   .handshake_timeout = setup_.timeouts.connect});
      if (server) {
        arena_server_ = std::move(*server);
        mapping_address_ = arena_server_->address();
      } else {
        path_log_.NoArena(server.error().message);
        spdlog::warn("no mapping for peers on this host: {}", server.error().message);
      }
    }
    for (const transport::paths::Choice& choice : setup_.transports) transports_.Open(choice);
    if (Status any = transports_.CheckAnyOpen(); !any.ok()) return any;
    for (const TransportOffer& offer : transports_.offers()) {
      if (offer.name == "ucx") path_log_.NoUcx(offer.error);
    }
    MachineConfig core = setup_.core;
    core.transports = transports_.names();
    core_.emplace(std::move(core), layout_);
    transports_.Start();
    OpenPorts open = transports_.ports();
    open.arena = mapping_address_;
    path_log_.Machine(transports_.active().library);
    spdlog::info("{}", Describe(open));
    if (open.ucx_listens) {
      spdlog::warn("{}", UcxWarning(open, setup_.paths.machine.AnyActivePort()));
    }
    spdlog::info(
        "each peer has at most {} fetches of {} KiB, {} MiB of messages to it, and {} MiB of "
        "messages from it before its path is measured",
        setup_.core.fetch_window, setup_.core.piece_bytes >> 10,
        transport::Options{}.send_queue_bytes >> 20, kEarlyBytes >> 20);
    return {};
  }

  const std::vector<TransportOffer>& offers() const override { return transports_.offers(); }
  const std::string& mapping_address() const override { return mapping_address_; }

  void Post(Event event) override {
    transports_.Run([this, event = std::move(event)] { Handle(event); });
  }

  void PostEndOfPart(event::RunDone run, event::PartSealed part) override {
    transports_.Run([this, run = std::move(run), part] {
      Handle(run);
      Handle(part);
    });
  }

  void EndUpdate(const ProgramUpdate& update) override {
    EndIfDeviceFails(
        [&] { order_.Report(operations_.EndUpdate(update.op, update.digest_bucket)); });
  }

  // On the core's thread.
  void Handle(const Event& event) override {
    if (const auto* of = std::get_if<event::FromCoordinator>(&event)) {
      if (const auto* form = std::get_if<msg::Form>(&of->message)) {
        path_log_.NoteHosts(*form);
        crew_size_.Saw(*form);
        UseThreads();
      } else if (const auto* left = std::get_if<msg::MemberLeft>(&of->message)) {
        crew_size_.Saw(*left);
        UseThreads();
      }
      if (std::holds_alternative<msg::Start>(of->message)) transports_.CloseOthers();
    }
    const Time now = MonotonicNow();
    round_clock_.Saw(now, event);
    Actions actions = core_->Step(now, event);
    for (const Action& action : actions) round_clock_.Saw(now, action);
    EndIfDeviceFails([&] { CarryOut(std::move(actions), 0); });
    FreeState(event);
  }

  transport::ServeAnswer Serve(const MemberId& peer, const PieceName& piece) override {
    const worker::Serve serve = core_->OnPieceAsked(peer, piece);
    if (!serve.have) return {};
    transport::ServeAnswer answer;
    EndIfDeviceFails([&] {
      const HeldState::Place place = PlaceOf(serve.from);
      if (place.kept != nullptr) served_[serve.cookie] = place.kept;
      answer = {.have = true, .slice = place.slice, .cookie = serve.cookie};
    });
    return answer;
  }

 private:
  // A device that fails ends this worker's part in the job.
  template <class Action>
  void EndIfDeviceFails(Action action) {
    try {
      action();
    } catch (const DeviceError& error) {
      compute_.End({.reason = error.what(), .failed = true});
    }
  }

  std::function<void(std::function<void()>)> OnReduction() {
    return [this](std::function<void()> task) {
      reduction_->Post([this, task = std::move(task)] { EndIfDeviceFails(task); });
    };
  }

  void CarryOut(Actions actions, std::size_t from) {
    for (std::size_t i = from; i < actions.size(); ++i) {
      if (const auto* use = std::get_if<action::UseTransport>(&actions[i])) {
        OpenTransport* to = transports_.Choose(use->name);
        if (to == nullptr) {
          compute_.End({.reason = fmt::format("the coordinator chose the transport '{}', which "
                                              "this worker does not offer (any more)",
                                              use->name),
                        .failed = true});
          return;
        }
        buffers_.ForgetRegions();
        if (to == &active()) continue;
        transports_.Activate(*to, [this, rest = std::move(actions), i]() mutable {
          PostTimer();
          EndIfDeviceFails([&] { CarryOut(std::move(rest), i + 1); });
        });
        return;
      }
      std::visit([this](auto& a) { Do(a); }, actions[i]);
    }
  }

  OpenTransport& active() { return transports_.active(); }

  void UseThreads() {
    if (!memory_.on_host() || crew_size_.threads() == threads_) return;
    threads_ = crew_size_.threads();
    operations_.UseThreads(threads_);
    spdlog::info("{}", crew_size_.Words());
  }

  HeldState::Place PlaceOf(const BufferRange& range) {
    const BufferId& buffer = range.buffer;
    if (buffers_.held() != nullptr && buffer.kind == BufferKind::kState && buffer.index > 0) {
      auto place = buffers_.held()->Find(*active().transport, buffer.index, range.range);
      LOCKSTEP_CHECK(place.ok(), "{}", place.error().message);
      return *std::move(place);
    }
    auto region = buffers_.Region(*active().transport, buffer);
    LOCKSTEP_CHECK(region.ok(), "{}", region.error().message);
    const std::uint64_t number = buffers_.NumberBytes(buffer);
    return {{*region, range.range.first * number, range.range.count * number}, nullptr};
  }

  // Of shards that were moved or dropped, once nobody reads or writes it any more.
  void FreeState(const Event& event) {
    if (buffers_.held() == nullptr) return;
    if (const auto* served = std::get_if<event::Served>(&event)) served_.erase(served->cookie);
    if (const auto* done = std::get_if<event::FetchDone>(&event)) fetched_.erase(done->fetch);
    auto unused = buffers_.held()->Collect(*active().transport);
    // A device frees memory when it has done all that is asked of it.
    if (!unused.empty()) reduction_->Post([blocks = std::move(unused)] {});
  }

  void Do(action::ToCoordinator& a) {
    if (auto* reached = std::get_if<msg::Reached>(&a.message)) {
      const std::string unfit = path_log_.Assess(active(), mapper_, *reached);
      if (!unfit.empty()) {
        setup_.unfit(unfit);
        return;
      }
    }
    setup_.to_coordinator(std::move(a.message), nullptr);
  }

  void Do(action::ToPeer& a) {
    const auto peer = active().PeerOf(a.peer);
    if (!peer) return;  // went down; the core hears of it
    for (const BufferRange& range : a.payload) {
      const std::uint64_t number = buffers_.NumberBytes(range.buffer);
      const std::size_t bytes = range.range.count * number;
      a.bytes.resize(a.bytes.size() + bytes);
      memory_.ToHost(a.bytes.data() + a.bytes.size() - bytes,
                     buffers_.Data(range.buffer) + range.range.first * number, bytes);
    }
    if (!active().transport->Send(*peer, a.bytes)) {
      active().transport->Close(*peer, "its queue of messages is full: it does not read");
    }
  }

  void Do(action::UseTransport&) {}  // see CarryOut

  void Do(action::ConnectPeer& a) {
    active().transport->Connect(a.info.member, a.info.data_address);
  }

  void Do(action::MapPeer& a) {
    mapper_.Map(a.info, [this](const event::PeerMapped& mapped) { Handle(mapped); });
  }

  void Do(action::UnmapPeer& a) { mapper_.Unmap(a.peer); }

  void Do(action::ClosePeer& a) {
    if (const auto peer = active().PeerOf(a.peer)) active().transport->Close(*peer, a.reason);
  }

  void Do(action::Fetch& a) {
    if (a.to.buffer.kind == BufferKind::kState) operations_.NoteStateWritten();
    if (const auto peer = active().PeerOf(a.peer)) {
      HeldState::Place place = PlaceOf(a.to);
      if (place.kept != nullptr) fetched_[a.fetch] = std::move(place.kept);
      active().fetches.Fetch(*peer, a.fetch, a.piece, place.slice);
    } else {
      active().fetches.Refuse(a.fetch);
    }
  }

  void Do(action::GiveUpFetch& a) { active().fetches.GiveUp(a.fetch); }

  void Do(action::StoreInline& a) {
    std::byte* to =
        buffers_.Data(a.to.buffer) + a.to.range.first * buffers_.NumberBytes(a.to.buffer);
    memory_.FromHost(to, a.bytes.data(), a.bytes.size());
  }

  void Do(action::OpenBlock& a) {
    if (buffers_.arena() == nullptr) return;
    const std::size_t block = buffers_.ArenaBlock(a.buffer);
    buffers_.arena()->BeginWrite(block);
    buffers_.arena()->Publish(block, a.generation);
    // The new generation is seen before any byte of the new content is.
    transport::StoreBeforeLaterWrites();
  }

  void Do(action::GiveBack& a) { buffers_.GiveBack(a.buffer, a.kept); }

  void Do(action::StartWork& a) { compute_.StartWork(&core_->queue(), a); }
  void Do(action::WakeCompute&) { compute_.WakeCompute(); }
  void Do(action::VoidWork&) { compute_.VoidWork(); }
  void Do(action::EvaluateChunk& a) { compute_.Evaluate(a); }
  void Do(action::EpochEnd& a) { compute_.EndEpoch(a); }

  template <class Operation>
  void PostOperation(Operation& operation) {
    const bool small = memory_.on_host() && operations_.Bytes(operation) <= kSmallBytes;
    order_.Do(small, [this, operation = std::move(operation)] { return Run(operation); });
  }
  template <class Operation>
  std::optional<event::OpDone> Run(const Operation& operation) {
    return operations_.Run(operation);
  }
  std::optional<event::OpDone> Run(const action::Apply& apply) {
    if (!layout_.whole()) return operations_.Run(apply);
    auto torn = operations_.Gather(apply);
    if (torn) return torn;
    compute_.Update({.op = apply.op,
                     .round = apply.round,
                     .learning_rate = apply.learning_rate,
                     .fraction = apply.fraction,
                     .samples = apply.samples,
                     .steps = apply.steps,
                     .position = apply.position,
                     .digest_bucket = apply.digest_bucket});
    return std::nullopt;
  }
  void Do(action::Reduce& a) { PostOperation(a); }
  void Do(action::CopySums& a) { PostOperation(a); }
  void Do(action::UpdateHeld& a) { PostOperation(a); }
  void Do(action::TakeParameters& a) { PostOperation(a); }
  void Do(action::DropHeldState& a) { operations_.DropHeldState(a); }
  void Do(action::Apply& a) { PostOperation(a); }
  void Do(action::CopyState& a) { PostOperation(a); }
  void Do(action::TakeSnapshot& a) { PostOperation(a); }
  void Do(action::DigestState& a) { PostOperation(a); }
  void Do(action::DigestReplica& a) {
    if (setup_.checkpoint_due) setup_.checkpoint_due(a.round);
    PostOperation(a);
  }

  void Do(action::InitializeState& a) {
    const std::uint64_t count = core_->layout().parameter_count();
    if (!a.parameters) {
      // They are there.
    } else if (memory_.on_host()) {
      setup_.initialize({buffers_.parameters(), count});
    } else {
      std::vector<float> parameters(count);
      setup_.initialize(parameters);
      memory_.FromHost(buffers_.parameters(), parameters.data(), count * sizeof(float));
    }
    // What was never written is zero, and most of it never will be where the state is shared out.
    if (setup_.core.shards > 0) return;
    const std::uint32_t whole = state_tensors_ - (layout_.rank() > 0 ? 1 : 0);  // but factors
    for (std::uint32_t t = 1; t <= whole; ++t) {
      memory_.Zero(buffers_.At({BufferKind::kState, t, {}}), count);
    }
  }

  void Do(action::StoreState& a) {
    operations_.NoteStateWritten();
    if (setup_.started_from && a.tensor == 0 && a.offset == 0) setup_.started_from(a.round);
    if (buffers_.held() != nullptr && a.tensor > 0) {
      buffers_.held()->Store(a.tensor, a.offset, a.bytes);
      return;
    }
    auto* to = reinterpret_cast<std::byte*>(buffers_.At({BufferKind::kState, a.tensor, {}}));
    if (layout_.rank() > 0 && a.tensor == state_tensors_) {
      StoreFactors(to, a.offset, a.bytes);
      return;
    }
    memory_.FromHost(to + a.offset, a.bytes.data(), a.bytes.size());
  }

  // All else is zero and stays so: where nothing is written it takes no memory. (A job of another
  // rank had other places.)
  void StoreFactors(std::byte* to, std::uint64_t offset, std::span<const std::byte> bytes) {
    const FloatRange floats{offset / sizeof(float), bytes.size() / sizeof(float)};
    for (const FloatRange& range : layout_.FactorsWithin(floats)) {
      std::memcpy(to + range.first * sizeof(float),
                  bytes.data() + range.first * sizeof(float) - offset, range.count * sizeof(float));
    }
  }

  void Do(action::UploadChunk& a) {
    msg::StateChunk chunk{
        .round = a.round, .tensor = a.tensor, .offset = a.offset, .last = a.last, .bytes = {}};
    const auto* from = reinterpret_cast<const std::byte*>(
                           buffers_.snapshot(a.tensor, action::SnapshotKind::kCheckpoint)) +
                       a.offset;
    chunk.bytes.assign(from, from + a.bytes);
    if (a.offset + a.bytes == layout_.parameter_count() * sizeof(float)) {
      buffers_.DropSnapshot(a.tensor, action::SnapshotKind::kCheckpoint);
    }
    setup_.to_coordinator(std::move(chunk), [this] { Post(event::ChunkUploaded{}); });
  }

  void Do(action::GiveChunk& a) {
    msg::Given chunk{.giving = a.giving, .offset = a.offset, .bytes = {}};
    chunk.bytes.resize(a.bytes);
    const auto* from = reinterpret_cast<const std::byte*>(buffers_.parameters()) + a.offset;
    memory_.ToHost(chunk.bytes.data(), from, a.bytes);
    setup_.to_coordinator(std::move(chunk), [this] { Post(event::ChunkGiven{}); });
  }

  void Do(action::SetTimer& a) {
    due_ = a.at;
    PostTimer();
  }
  // On the transport on which the core lives: another one may be closed before it is due.
  void PostTimer() {
    const std::uint64_t number = ++timer_;
    if (due_ == kNever) return;
    active().transport->PostAt(due_, [this, number] {
      transports_.Run([this, number] {
        if (number != timer_) return;
        due_ = kNever;
        Handle(event::TimerDue{active().LastHeard()});
      });
    });
  }

  void Do(action::Slowdown& a) { setup_.slowdown(a.specs); }
  void Do(action::Exit& a) {
    compute_.End({.reason = a.reason,
                  .failed = a.failed,
                  .left = a.left,
                  .final_parameters = a.not_final.empty(),
                  .params_digest = a.params_digest,
                  .not_final = a.not_final,
                  .early = a.early,
                  .applied = std::move(a.applied),
                  .copied = a.copied});
  }
  void Do(action::Orphaned& a) { compute_.Orphan(std::move(a)); }
  void Do(action::Detached& a) { compute_.Detach(std::move(a)); }
  void Do(action::Log& a) { spdlog::info("{}", a.line); }

  const Setup setup_;
  WorkerBuffers& buffers_;
  ExchangeMemory& memory_;
  ComputeQueue& compute_;
  PeerArenas arenas_;
  Operations operations_;
  TransportSet transports_;
  PathLog path_log_;
  PeerMapper mapper_;
  OperationOrder order_;
  RoundClock round_clock_;
  const Layout layout_;
  std::optional<StepMachine> core_;  // from Open on
  const std::uint32_t state_tensors_;
  CrewSize crew_size_;
  std::size_t threads_ = 1;  // as they were last told
  std::string mapping_address_;
  std::unique_ptr<transport::ArenaServer> arena_server_;
  std::unique_ptr<TaskThread> reduction_ = std::make_unique<TaskThread>("reduction");
  std::uint64_t timer_ = 0;  // those that were set; only the last one counts
  Time due_ = kNever;        // when that is
  // What is kept of HeldState, by cookie and by fetch.
  std::map<std::uint64_t, std::shared_ptr<const void>> served_;
  std::map<std::uint64_t, std::shared_ptr<const void>> fetched_;
};

}  // namespace

Result<std::unique_ptr<DataPlane>> DataPlane::Start(Setup setup, const Layout& layout,
                                                    WorkerBuffers& buffers,
                                                    const Optimizer& optimizer,
                                                    ComputeQueue& compute) {
  auto plane =
      std::make_unique<DataPlaneImpl>(std::move(setup), layout, buffers, optimizer, compute);
  if (Status opened = plane->Open(); !opened.ok()) return opened.error();
  return std::unique_ptr<DataPlane>(std::move(plane));
}

}  // namespace lockstep::worker
