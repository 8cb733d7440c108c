#include "tools/simulate/step_worker.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "tools/simulate/memory.h"

namespace lockstep::simulate {

using worker::UnitQueue;
namespace action = worker::action;
namespace event = worker::event;

namespace {

constexpr std::uint64_t kFrame = 64;  // bytes of a message beside its payload, about

std::uint64_t FloatsOf(const std::vector<action::SourceRange>& ranges) {
  std::uint64_t floats = 0;
  for (const action::SourceRange& range : ranges) floats += range.range.count;
  return floats;
}

}  // namespace

void Cluster::Inject(const Fault& fault) {
  if (fault.kind == FaultKind::kFlip) flipped.insert(fault.machine);
  for (const auto& [id, worker] : alive) {
    if (worker->machine() != fault.machine) continue;
    if (fault.kind == FaultKind::kHangReduction) worker->HangReduction(fault.length);
    if (fault.kind == FaultKind::kHangCompute) worker->HangCompute(fault.length);
    if (fault.kind == FaultKind::kAway) worker->GoAway(fault.length);
  }
  if (fault.kind != FaultKind::kCutLink) return;
  StepWorker* one = nullptr;
  std::optional<MemberId> other;
  for (const auto& [id, worker] : alive) {
    if (worker->machine() == fault.machine) one = worker;
    if (worker->machine() == fault.other) other = id;
  }
  if (one != nullptr && other) one->Cut(*other);
}

std::string Cluster::Describe() const {
  std::string text;
  for (const auto& [id, worker] : alive) {
    const worker::StepMachine::View view = worker->view();
    text += fmt::format("worker {}.{} round {}{}, {} fetches, {} queued, {} pins: waits for {}\n",
                        id.worker, id.incarnation, view.next, view.level ? "" : " (not level)",
                        view.fetches, view.queued, view.pins, view.waiting_for);
  }
  return text;
}

std::string StepWorker::HostId() const {
  return fmt::format("{}", host_->machine() % std::max(1u, cluster_->options.hosts));
}

void StepWorker::OnConnected() {
  msg::Hello hello;
  hello.version = "simulated";
  hello.host = fmt::format("machine {}", host_->machine());
  hello.pid = host_->machine();
  hello.device = "cpu";
  hello.wanted = machine_ ? std::optional(self_.worker) : host_->wanted();
  hello.host_id = HostId();
  host_->Send(hello);
}

void StepWorker::OnMessage(const msg::ToWorker& message) {
  const auto* welcome = std::get_if<msg::Welcome>(&message);
  if (welcome != nullptr && orphaned_) {
    next_welcome_ = *welcome;
    Handle(event::CoordinatorFound{welcome->decided});
  } else if (welcome != nullptr) {
    Begin(*welcome, {});
  } else if (machine_ && !orphaned_) {
    Handle(event::FromCoordinator{message});
  } else if (const auto* ping = std::get_if<msg::Ping>(&message)) {
    host_->Send(msg::Pong{.sequence = ping->sequence,
                          .ping_sent_ns = ping->sent_ns,
                          .answered_ns = host_->now().time_since_epoch().count()});
  }
}

bool StepWorker::OnCoordinatorGone(const std::string& reason) {
  if (!machine_ || !cluster_->options.machine.reattaches) return false;
  if (next_welcome_) {
    next_gone_ = true;
    return true;
  }
  if (!orphaned_) Handle(event::CoordinatorGone{reason});
  if (orphaned_) host_->LookForCoordinator();
  return orphaned_;
}

// Another model goes on with the state of this one, which is as good as dead.
void StepWorker::Do(const action::Detached& a) {
  const msg::Welcome welcome = *next_welcome_;
  Before before{numbers_, a.held, a.shards, a.whole, a.next_generation, a.epochs_seen};
  // The same coordinator, which had put it out, or one that has given its place away.
  if (welcome.term == term_ || welcome.self.worker != self_.worker) {
    before.held.reset();
    before.shards.clear();
  }
  OnKilled();
  auto next = std::make_unique<StepWorker>(host_, cluster_);
  StepWorker* const worker = next.get();
  host_->GoOnAs(std::move(next));
  worker->Begin(welcome, before);
  if (next_gone_)
    worker->OnCoordinatorGone("connection reset");  // it has begun, and so it looks on
}

void StepWorker::Begin(const msg::Welcome& welcome, const Before& before) {
  const Cluster::Options& options = cluster_->options;
  self_ = welcome.self;
  host_->SetSelf(self_);
  cluster_->alive[self_] = this;
  worker::MachineConfig config = options.machine;
  config.self = self_;
  config.term = term_ = welcome.term;
  config.held = before.held;
  config.held_shards = held_shards_ = before.shards;
  config.held_whole = before.whole;
  config.first_generation = before.next_generation;
  config.epochs_seen = before.epochs_seen;
  config.takes_costs = welcome.takes_costs;
  config.state_tensors = StateTensors(cluster_->layout);
  config.mapping = options.hosts > 0;
  config.host_id = HostId();
  numbers_ = cluster_->make_numbers(self_);
  if (before.numbers) numbers_->TakeOver(*before.numbers);
  machine_.emplace(config, cluster_->layout);
  msg::Ready ready;
  if (options.ucx) ready.transports.push_back({"ucx", "address", ""});
  ready.transports.push_back({"tcp", "address", ""});
  if (options.hosts > 0) ready.mapping_address = "arena";
  ready.dataset_digest = "simulated";
  ready.train_samples = options.train_samples;
  ready.test_samples = options.test_samples;
  ready.parameter_count = options.whole_checkpoints ? cluster_->layout.parameter_count() : 1;
  ready.state_tensors = options.whole_checkpoints ? StateTensors(cluster_->layout) : 0;
  ready.own_parameters = options.own_parameters;
  ready.held = before.held;
  ready.held_shards.assign(before.shards.begin(), before.shards.end());
  host_->Send(ready);
}

void StepWorker::Handle(const worker::Event& event) {
  if (dead_) return;
  LOCKSTEP_CHECK(!in_step_, "a step within a step");
  if (cluster_->on_event) cluster_->on_event(self_, event);
  in_step_ = true;
  const worker::Actions actions = machine_->Step(host_->now(), event);
  in_step_ = false;
  machine_->CheckInvariants();
  for (const worker::Action& action : actions) {
    if (cluster_->on_action) cluster_->on_action(self_, action);
    std::visit([&](const auto& a) { Do(a); }, action);
  }
  if (const auto* told = std::get_if<worker::event::FromCoordinator>(&event)) {
    const auto* start = std::get_if<msg::Start>(&told->message);
    if (start != nullptr && start->source == StateSource::kGiven) numbers_->OnBegun();
    if (start != nullptr && start->source == StateSource::kHeld) {
      std::vector<FloatRange> ranges;
      for (const std::uint32_t shard : held_shards_) {
        const std::uint32_t of = cluster_->options.machine.shards;
        for (const Slice& slice : cluster_->layout.EqualShard(shard, of)) {
          ranges.push_back(slice.range);
        }
      }
      numbers_->OnHeld(start->plan.round, ranges);
    }
  }
}

Duration StepWorker::Shortly() { return cluster_->network->Pass(0); }

void StepWorker::OnKilled() {
  if (dead_) return;
  dead_ = true;
  const auto at = cluster_->alive.find(self_);
  if (at != cluster_->alive.end() && at->second == this) cluster_->alive.erase(at);
  for (const auto& [peer, connection] : connections_) {
    connection->down[EndOf(*connection)] = true;
    EndConnection(connection, "connection closed by peer");
  }
}

// --- connections and messages

void StepWorker::Carry(const std::shared_ptr<Connection>& c, std::uint64_t bytes,
                       std::function<void(StepWorker*)> there) {
  const int to = 1 - EndOf(*c);
  StepWorker* other = c->ends[to];
  if (other->dead_) return;
  const Time now = host_->true_now();
  c->last_arrival[to] =
      std::max(c->last_arrival[to],
               cluster_->network->Arrival(now, machine(), other->machine(), bytes + kFrame));
  other->host_->AtTrue(c->last_arrival[to], [c, to, other, there = std::move(there)] {
    if (!c->down[to]) there(other);
  });
}

void StepWorker::EndConnection(const std::shared_ptr<Connection>& c, const std::string& reason) {
  Carry(c, 0, [c, reason](StepWorker* other) { other->Down(c, reason); });
}

void StepWorker::Cut(const MemberId& peer) {
  const auto at = connections_.find(peer);
  if (at == connections_.end()) return;
  const auto c = at->second;
  EndConnection(c, "connection reset");
  host_->After(Shortly(), [this, c] { Down(c, "connection reset"); });
}

void StepWorker::Down(const std::shared_ptr<Connection>& c, const std::string& reason) {
  const int end = EndOf(*c);
  if (c->down[end]) return;
  c->down[end] = true;
  const MemberId peer = c->ends[1 - end]->self_;
  if (const auto at = connections_.find(peer); at != connections_.end() && at->second == c) {
    connections_.erase(at);
  }
  std::vector<Fetch> mine;
  for (const auto& [id, fetch] : fetches_) {
    if (fetch->connection == c) mine.push_back(fetch);
  }
  for (const Fetch& fetch : mine) FinishFetch(fetch, FetchStatus::kPeerDown);
  const std::vector<Fetch> serving = std::move(serving_[c.get()]);
  serving_.erase(c.get());
  for (const Fetch& fetch : serving) {
    if (fetch->cookie) Handle(event::Served{*std::exchange(fetch->cookie, std::nullopt)});
  }
  Handle(event::PeerDown{peer, reason});
}

void StepWorker::Do(const action::ConnectPeer& a) {
  const auto at = cluster_->alive.find(a.info.member);
  StepWorker* other = at == cluster_->alive.end() ? nullptr : at->second;
  if (other == nullptr || connections_.contains(a.info.member)) {
    host_->After(Shortly(), [this, member = a.info.member] {
      Handle(event::ConnectFailed{member, "no such worker"});
    });
    return;
  }
  auto c = std::make_shared<Connection>();
  c->ends = {this, other};
  connections_[other->self_] = c;
  Carry(c, 0, [c, me = self_](StepWorker* o) {
    if (o->connections_.contains(me)) {
      // The shell does the same: the second one is closed.
      o->EndConnection(c, "connected already");
      return;
    }
    o->connections_[me] = c;
    o->Carry(c, 0, [c](StepWorker* first) { first->Connected(c); });
    o->Connected(c);
  });
}

void StepWorker::Connected(const std::shared_ptr<Connection>& c) {
  Handle(event::PeerUp{c->ends[1 - EndOf(*c)]->self_, "simulated"});
}

void StepWorker::Do(const action::MapPeer& a) {
  host_->After(Shortly(), [this, member = a.info.member] {
    const auto at = cluster_->alive.find(member);
    if (at == cluster_->alive.end()) {
      Handle(event::PeerMapped{member, false, "no such worker"});
      return;
    }
    numbers_->Map(member, at->second->numbers_);
    Handle(event::PeerMapped{member, true, ""});
  });
}

void StepWorker::Do(const action::ClosePeer& a) {
  cluster_->counts["close"]++;
  const auto at = connections_.find(a.peer);
  if (at == connections_.end()) return;
  const auto c = at->second;
  EndConnection(c, a.reason);
  host_->After(Shortly(), [this, c, reason = a.reason] { Down(c, reason); });
}

void StepWorker::Do(const action::ToPeer& a) {
  const auto at = connections_.find(a.peer);
  if (at == connections_.end()) return;
  std::vector<std::byte> bytes = a.bytes;
  for (const worker::BufferRange& part : a.payload) numbers_->Append(part, &bytes);
  const std::uint64_t size = bytes.size();
  Carry(at->second, size, [bytes = std::move(bytes), from = self_](StepWorker* other) {
    other->Handle(event::FromPeer{from, bytes});
  });
}

void StepWorker::Do(const action::ToCoordinator& a) {
  if (const auto* level = std::get_if<msg::Level>(&a.message))
    numbers_->OnLevel(level->round.Next());
  if (orphaned_) return;
  if (const auto* applied = std::get_if<msg::Applied>(&a.message)) {
    numbers_->OnSaidApplied(applied->round, applied->attempt);
  }
  if (std::holds_alternative<msg::Behind>(a.message)) cluster_->counts["behind"]++;
  if (const auto* pong = std::get_if<msg::Pong>(&a.message); pong != nullptr && run_) {
    msg::Pong in_run = *pong;
    in_run.run = {(host_->now() - run_->start()).count(), computing_.count};
    return host_->Send(in_run);
  }
  if (const auto* reached = std::get_if<msg::Reached>(&a.message);
      reached != nullptr && cluster_->options.measured_gb_per_second > 0) {
    msg::Reached measured = *reached;
    for (PeerPath& path : measured.peers) {
      path.gb_per_second = cluster_->options.measured_gb_per_second;
    }
    return host_->Send(std::move(measured));
  }
  host_->Send(a.message);
}

// --- fetches

void StepWorker::Do(const action::Fetch& a) {
  auto fetch = std::make_shared<FetchState>();
  fetch->order = a;
  const auto at = connections_.find(a.peer);
  fetches_[a.fetch] = fetch;
  if (at == connections_.end()) {
    host_->After(Shortly(), [this, fetch] { FinishFetch(fetch, FetchStatus::kPeerDown); });
    return;
  }
  fetch->connection = at->second;
  Carry(at->second, 0,
        [c = at->second, fetch](StepWorker* server) { server->ServeFetch(c, fetch); });
}

void StepWorker::ServeFetch(const std::shared_ptr<Connection>& c, const Fetch& fetch) {
  const MemberId peer = c->ends[1 - EndOf(*c)]->self_;
  const worker::Serve serve = machine_->OnPieceAsked(peer, fetch->order.piece);
  if (!serve.have) {
    Carry(c, 0, [fetch](StepWorker* other) { other->FinishFetch(fetch, FetchStatus::kGone); });
    return;
  }
  fetch->cookie = serve.cookie;
  fetch->begun = true;
  serving_[c.get()].push_back(fetch);
  // The bytes are read at their arrival, not before, so that a write to the buffer meanwhile shows.
  Carry(c, fetch->order.piece.bytes, [c, fetch, from = serve.from](StepWorker* other) {
    StepWorker* server = c->ends[1 - other->EndOf(*c)];
    // The end of the connection follows. An end that has closed the connection serves nothing any
    // more, and may have written to the buffer since.
    if (server->dead_ || c->down[server->EndOf(*c)]) return;
    const bool dropped = fetch->given_up && other->host_->random().NextBelow(2) == 0;
    if (!dropped && !fetch->done) {
      other->numbers_->TakePiece(*server->numbers_, from, fetch->order.to);
    }
    other->Carry(c, 0, [c, fetch](StepWorker* s) {
      std::erase(s->serving_[c.get()], fetch);
      if (fetch->cookie) s->Handle(event::Served{*std::exchange(fetch->cookie, std::nullopt)});
    });
    other->FinishFetch(fetch, dropped ? FetchStatus::kGivenUp : FetchStatus::kOk);
  });
}

void StepWorker::Do(const action::GiveUpFetch& a) {
  cluster_->counts["give up"]++;
  const auto at = fetches_.find(a.fetch);
  if (at == fetches_.end()) return;
  const Fetch fetch = at->second;
  fetch->given_up = true;
  // A fetch that has not begun ends without the peer; one that has begun may still arrive.
  if (fetch->begun) return;
  host_->After(Shortly(), [this, fetch] {
    if (!fetch->begun) FinishFetch(fetch, FetchStatus::kGivenUp);
  });
}

void StepWorker::FinishFetch(const Fetch& fetch, FetchStatus status) {
  if (fetch->done) return;
  fetch->done = true;
  fetches_.erase(fetch->order.fetch);
  Handle(event::FetchDone{fetch->order.fetch, status});
}

// --- the reduction thread

template <class Operation>
void StepWorker::Queue(const Operation& a, std::uint64_t floats) {
  ops_.push_back({cluster_->network->Pass(floats * sizeof(float)), [this, a] {
                    event::OpDone done;
                    done.op = a.op;
                    numbers_->Run(a, &done);
                    return done;
                  }});
  if (!op_under_way_) RunNextOp();
}

void StepWorker::RunNextOp() {
  if (ops_.empty()) return;
  op_under_way_ = true;
  host_->After(ops_.front().takes, [this] { EndOp(); });
}

void StepWorker::EndOp() {
  if (dead_) return;
  if (host_->true_now() < reduction_hangs_until_) {
    host_->AtTrue(reduction_hangs_until_, [this] { EndOp(); });
    return;
  }
  const event::OpDone done = ops_.front().run();
  ops_.pop_front();
  op_under_way_ = false;
  RunNextOp();
  Handle(done);
}

void StepWorker::HangReduction(Duration length) {
  reduction_hangs_until_ = std::max(reduction_hangs_until_, host_->true_now() + length);
}

void StepWorker::HangCompute(Duration length) {
  compute_hangs_until_ = std::max(compute_hangs_until_, host_->true_now() + length);
}

// The program can go away only once it has work.
void StepWorker::GoAway(Duration length) {
  if (!work_) return;
  HangCompute(length);
  away_until_ = compute_hangs_until_;
  host_->Send(msg::Away{kSaidAway.count(), "validation"});
  host_->AtTrue(away_until_, [this, until = away_until_] {
    if (until == away_until_) host_->Send(msg::Back{});
  });
}

void StepWorker::CheckMayChange() const {
  LOCKSTEP_CHECK(!in_run_ || work_->on_copy, "the parameters change under a unit");
  LOCKSTEP_CHECK(!between_epochs_, "the parameters change while the program looks at them");
}

void StepWorker::Do(const action::Reduce& a) {
  std::uint64_t floats = 0;
  for (const worker::Slice& slice : a.slices) floats += slice.range.count;
  Queue(a, floats * a.inputs.size());
}

void StepWorker::Do(const action::CopySums& a) {
  cluster_->counts["copy sums"]++;
  Queue(a, FloatsOf(a.from));
}

void StepWorker::Do(const action::Apply& a) {
  CheckMayChange();
  Queue(a, 3 * FloatsOf(a.slices));
}

void StepWorker::Do(const action::UpdateHeld& a) {
  std::uint64_t floats = 0;
  for (const worker::FloatRange& range : a.ranges) floats += range.count;
  Queue(a, 4 * floats);
}

void StepWorker::Do(const action::TakeParameters& a) {
  CheckMayChange();
  Queue(a, 2 * FloatsOf(a.from));
}

void StepWorker::Do(const action::CopyState& a) {
  Queue(a, 2 * cluster_->layout.copy(a.bucket).count);
}
void StepWorker::Do(const action::TakeSnapshot& a) {
  LOCKSTEP_CHECK(a.kind != action::SnapshotKind::kCompute || !in_run_,
                 "the copy changes under a unit");
  Queue(a, cluster_->layout.parameter_count());
}
void StepWorker::Do(const action::DigestState& a) { Queue(a, cluster_->layout.parameter_count()); }
void StepWorker::Do(const action::DigestReplica& a) {
  Queue(a, 2 * cluster_->layout.parameter_count());
}

// --- side jobs

void StepWorker::Do(const action::UploadChunk& a) {
  if (cluster_->options.whole_checkpoints) {
    msg::StateChunk chunk{a.round, a.tensor, a.offset, a.last, std::vector<std::byte>(a.bytes)};
    numbers_->ReadCheckpoint(a.tensor, a.offset, chunk.bytes);
    host_->Send(std::move(chunk));
  } else if (a.last) {
    host_->Send(msg::StateChunk{a.round, 0, 0, true, std::vector<std::byte>(sizeof(float))});
  }
  host_->After(Shortly(), [this] { Handle(event::ChunkUploaded{}); });
}

void StepWorker::Do(const action::GiveChunk& a) {
  msg::Given chunk{a.giving, a.offset, std::vector<std::byte>(a.bytes)};
  numbers_->ReadParameters(a.offset, chunk.bytes);
  host_->Send(std::move(chunk));
  host_->After(Shortly(), [this] { Handle(event::ChunkGiven{}); });
}

void StepWorker::Do(const action::EvaluateChunk& a) {
  host_->After(Shortly(), [this, a] {
    Handle(event::ChunkEvaluated{a.evaluation, a.range, static_cast<double>(a.range.size()),
                                 a.range.size() / 2});
  });
}

void StepWorker::Do(const action::EpochEnd& a) {
  LOCKSTEP_CHECK(!in_run_, "an epoch's end within a run");
  between_epochs_ = true;
  cluster_->counts["epoch end"]++;
  if (a.late) cluster_->counts["epoch end, late"]++;
  const bool validates = cluster_->options.validates && host_->random().NextBelow(4) == 0;
  const Duration takes =
      validates ? std::chrono::milliseconds(1 + host_->random().NextBelow(500)) : Shortly();
  host_->After(takes, [this] {
    between_epochs_ = false;
    Handle(event::EpochEndSeen{});
    Compute();
  });
}

std::vector<std::pair<MemberId, Time>> StepWorker::LastHeard() const {
  std::vector<std::pair<MemberId, Time>> heard;
  if (!cluster_->network->Flows()) return heard;
  for (const auto& [peer, connection] : connections_) {
    if (connection->last_arrival[EndOf(*connection)] > host_->true_now()) {
      heard.emplace_back(peer, host_->now());
    }
  }
  return heard;
}

void StepWorker::Do(const action::SetTimer& a) {
  const std::uint64_t number = ++timer_;
  host_->At(std::max(host_->now(), a.at), [this, number] {
    if (number == timer_) Handle(event::TimerDue{LastHeard()});
  });
}

void StepWorker::Do(const action::Log& a) {
  cluster_->counts[a.line.substr(0, a.line.find(' '))]++;
}

// --- the compute thread

void StepWorker::Do(const action::StartWork& a) {
  LOCKSTEP_CHECK(!in_run_, "new work within a run");
  work_ = a;
  numbers_->StartWork(a);
  TellCosts(a.epoch);
  Compute();
}

// As a program does that has the order of its samples when the first ones are wanted.
void StepWorker::TellCosts(Epoch epoch) {
  if (cluster_->options.costs == nullptr || (told_costs_ && *told_costs_ >= epoch)) return;
  told_costs_ = epoch;
  host_->After(Shortly(), [this, epoch] {
    Handle(cluster_->options.costs->Of(epoch));
    Handle(cluster_->options.costs->Of(epoch.Next()));
  });
}

void StepWorker::Compute() {
  if (in_run_ || between_epochs_ || !work_) return;
  const UnitQueue::Take take = machine_->queue().TakeNext();
  if (take.kind == UnitQueue::TakeKind::kNone) return;
  in_run_ = true;
  if (take.kind == UnitQueue::TakeKind::kSeal) {
    host_->After(Shortly(), [this, take] {
      in_run_ = false;
      Seal(take);
      Compute();
    });
    return;
  }
  numbers_->BeginRun();
  computing_ = take;
  run_.emplace(machine_->queue(), take, self_.worker, work_->round, work_->epoch, host_->now(),
               cluster_->compute, host_->random());
  host_->At(run_->end(), [this, run = ++runs_] { EndRun(run); });
}

void StepWorker::Do(const action::VoidWork&) {
  if (!run_) return;
  const auto at = run_->LetsGo(host_->now());
  if (at) host_->At(*at, [this, run = runs_] { EndRun(run); });
}

// It may be early; the later call finds another run.
void StepWorker::EndRun(std::uint64_t run) {
  if (dead_ || !run_ || run != runs_) return;
  if (host_->true_now() < compute_hangs_until_) {
    host_->AtTrue(compute_hangs_until_, [this, run] { EndRun(run); });
    return;
  }
  const ComputedRun ended = *run_;
  run_.reset();
  FinishRun(computing_, ended);
}

worker::event::UnitAudited StepWorker::Audited(const UnitQueue::Take& take,
                                               const ComputedRun& run) {
  worker::event::UnitAudited audited{.work = take.work,
                                     .unit = run.units().front(),
                                     .counts = take.kind == UnitQueue::TakeKind::kRun,
                                     .gradient = {}};
  if (machine_->queue().IsVoid()) return audited;
  audited.gradient.emplace();
  audited.gradient->bits = numbers_->Audit(audited.unit);
  if (cluster_->flipped.contains(host_->machine())) ++audited.gradient->bits.low;
  audited.gradient->sketch.resize(msg::kAuditCounters);
  audited.gradient->arithmetic = "simulated";
  return audited;
}

void StepWorker::FinishRun(const UnitQueue::Take& take, const ComputedRun& run) {
  if (take.kind == UnitQueue::TakeKind::kAudit) {
    in_run_ = false;
    Handle(Audited(take, run));
    Compute();
    return;
  }
  if (take.audited) Handle(Audited(take, run));
  numbers_->FinishRun(take, run.units(), machine_->queue().IsVoid());
  const std::uint32_t work = work_->work;
  const bool last = machine_->queue().BeginSeal();
  if (last) {
    const auto buckets = cluster_->layout.bucket_count();
    for (std::uint32_t b = 1; b < buckets; b += 1 + buckets / 3) {
      numbers_->BucketsFinal(take, b);
      Handle(event::BucketsFinal{work, take.part, b});
    }
  }
  // Its last use of the parameters is over, so they may change in the next step.
  in_run_ = last;
  event::RunDone done{work, take.part, run.samples(), 0.0, run.Timings(host_->now())};
  if (cluster_->options.weighed) done.divisor = run.divisor();
  Handle(std::move(done));
  if (last) {
    in_run_ = false;
    Seal(take);
  }
  Compute();
}

void StepWorker::Seal(const UnitQueue::Take& take) {
  const bool finite = numbers_->Seal(take);
  Handle(event::PartSealed{take.work, take.part, host_->now().time_since_epoch().count(), finite});
}

}  // namespace lockstep::simulate
