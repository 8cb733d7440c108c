#include "tests/property/worker/harness.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"

namespace lockstep::worker::sim {

using event::FetchStatus;

void SimWorker::OnMessage(const ToWorker& message) {
  if (const auto* welcome = std::get_if<Welcome>(&message)) {
    self_ = welcome->self;
    world_->alive[self_] = this;
    MachineConfig config = world_->options.machine;
    config.self = self_;
    config.term = welcome->term;
    config.state_tensors = 1;
    config.mapping = world_->options.hosts > 0;
    config.host_id = host_id_;
    memory_ = std::make_shared<Memory>(world_->layout);
    machine_.emplace(config, world_->layout);
    return;
  }
  if (machine_) Handle(event::FromCoordinator{message});
}

void SimWorker::Handle(const Event& event) {
  if (dead_) return;
  LOCKSTEP_CHECK(!in_step_, "a step within a step");
  in_step_ = true;
  const Actions actions = machine_->Step(host_->now(), event);
  in_step_ = false;
  for (const Action& action : actions) {
    std::visit([&](const auto& a) { Do(a); }, action);
  }
}

Duration SimWorker::Delay() {
  return std::chrono::microseconds(20 + host_->random().NextBelow(300));
}

void SimWorker::Kill() {
  if (dead_) return;
  dead_ = true;
  const auto at = world_->alive.find(self_);
  if (at != world_->alive.end() && at->second == this) world_->alive.erase(at);
  for (const auto& [peer, connection] : connections_) {
    connection->down[EndOf(*connection)] = true;
    EndConnection(connection, "connection closed by peer");
  }
}

// --- connections and messages

void SimWorker::Carry(const std::shared_ptr<Connection>& c, std::function<void(SimWorker*)> there) {
  const int to = 1 - EndOf(*c);
  SimWorker* other = c->ends[to];
  if (other->dead_) return;
  c->last_arrival[to] = std::max(c->last_arrival[to], host_->now() + Delay());
  other->host_->After(c->last_arrival[to] - host_->now(), [c, to, other, there] {
    if (!c->down[to]) there(other);
  });
}

void SimWorker::EndConnection(const std::shared_ptr<Connection>& c, const std::string& reason) {
  Carry(c, [c, reason](SimWorker* other) { other->Down(c, reason); });
}

void SimWorker::Down(const std::shared_ptr<Connection>& c, const std::string& reason) {
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

void SimWorker::Do(const action::ConnectPeer& a) {
  const auto at = world_->alive.find(a.info.member);
  SimWorker* other = at == world_->alive.end() ? nullptr : at->second;
  if (other == nullptr || connections_.contains(a.info.member)) {
    host_->After(Delay(), [this, member = a.info.member] {
      Handle(event::ConnectFailed{member, "no such worker"});
    });
    return;
  }
  auto c = std::make_shared<Connection>();
  c->ends = {this, other};
  connections_[other->self_] = c;
  Carry(c, [c, me = self_](SimWorker* o) {
    if (o->connections_.contains(me)) return;
    o->connections_[me] = c;
    o->Carry(c, [c](SimWorker* first) { first->Connected(c); });
    o->Connected(c);
  });
}

void SimWorker::Connected(const std::shared_ptr<Connection>& c) {
  Handle(event::PeerUp{c->ends[1 - EndOf(*c)]->self_, "simulated"});
}

void SimWorker::Do(const action::MapPeer& a) {
  host_->After(Delay(), [this, member = a.info.member] {
    const auto at = world_->alive.find(member);
    if (at == world_->alive.end()) {
      Handle(event::PeerMapped{member, false, "no such worker"});
      return;
    }
    mapped_[member] = at->second->memory_;
    Handle(event::PeerMapped{member, true, ""});
  });
}

void SimWorker::Do(const action::ClosePeer& a) {
  world_->counts["close"]++;
  const auto at = connections_.find(a.peer);
  if (at == connections_.end()) return;
  const auto c = at->second;
  EndConnection(c, a.reason);
  host_->After(Delay(), [this, c, reason = a.reason] { Down(c, reason); });
}

void SimWorker::Do(const action::ToPeer& a) {
  const auto at = connections_.find(a.peer);
  if (at == connections_.end()) return;
  std::vector<std::byte> bytes = a.bytes;
  for (const BufferRange& part : a.payload) {
    const float* from = memory_->At(part.buffer).data() + part.range.first;
    const auto* raw = reinterpret_cast<const std::byte*>(from);
    bytes.insert(bytes.end(), raw, raw + part.range.count * sizeof(float));
  }
  Carry(at->second, [bytes = std::move(bytes), from = self_](SimWorker* other) {
    other->Handle(event::FromPeer{from, bytes});
  });
}

void SimWorker::Do(const action::ToCoordinator& a) {
  if (const auto* level = std::get_if<Level>(&a.message)) {
    const std::string error = world_->CheckLevel(level->round.Next(), memory_->state);
    if (!error.empty()) world_->errors.push_back(fmt::format("worker {}: {}", self_.worker, error));
  }
  if (std::holds_alternative<Behind>(a.message)) world_->counts["behind"]++;
  host_->Send(a.message);
}

// --- fetches

void SimWorker::Do(const action::Fetch& a) {
  auto fetch = std::make_shared<FetchState>();
  fetch->order = a;
  const auto at = connections_.find(a.peer);
  if (at == connections_.end()) {
    fetches_[a.fetch] = fetch;
    host_->After(Delay(), [this, fetch] { FinishFetch(fetch, FetchStatus::kPeerDown); });
    return;
  }
  fetch->connection = at->second;
  fetches_[a.fetch] = fetch;
  Carry(at->second, [c = at->second, fetch](SimWorker* server) { server->ServeFetch(c, fetch); });
}

void SimWorker::ServeFetch(const std::shared_ptr<Connection>& c, const Fetch& fetch) {
  const MemberId peer = c->ends[1 - EndOf(*c)]->self_;
  const Serve serve = machine_->OnPieceAsked(peer, fetch->order.piece);
  if (!serve.have) {
    Carry(c, [fetch](SimWorker* other) { other->FinishFetch(fetch, FetchStatus::kGone); });
    return;
  }
  fetch->cookie = serve.cookie;
  serving_[c.get()].push_back(fetch);
  // The bytes are read when they arrive, not before: a buffer that is written meanwhile shows.
  Carry(c, [c, fetch, from = serve.from](SimWorker* other) {
    SimWorker* server = c->ends[1 - other->EndOf(*c)];
    if (server->dead_) return;  // the end of the connection follows
    const bool dropped = fetch->given_up && other->host_->random().NextBelow(2) == 0;
    if (!dropped && !fetch->done) {
      const BufferRange& to = fetch->order.to;
      const auto& source = server->memory_->At(from.buffer);
      auto& target = other->memory_->At(to.buffer);
      LOCKSTEP_CHECK(from.range.count == to.range.count, "a piece of another length");
      std::copy_n(source.begin() + static_cast<std::ptrdiff_t>(from.range.first), to.range.count,
                  target.begin() + static_cast<std::ptrdiff_t>(to.range.first));
      ++other->world_->fetched;
    }
    other->Carry(c, [c, fetch](SimWorker* s) {
      std::erase(s->serving_[c.get()], fetch);
      if (fetch->cookie) s->Handle(event::Served{*std::exchange(fetch->cookie, std::nullopt)});
    });
    other->FinishFetch(fetch, dropped ? FetchStatus::kGivenUp : FetchStatus::kOk);
  });
}

void SimWorker::Do(const action::GiveUpFetch& a) {
  const auto at = fetches_.find(a.fetch);
  if (at != fetches_.end()) at->second->given_up = true;
  world_->counts["give up"]++;
}

void SimWorker::FinishFetch(const Fetch& fetch, FetchStatus status) {
  if (fetch->done) return;
  fetch->done = true;
  fetches_.erase(fetch->order.fetch);
  Handle(event::FetchDone{fetch->order.fetch, status});
}

void SimWorker::Do(const action::StoreInline& a) {
  LOCKSTEP_CHECK(a.bytes.size() == a.to.range.count * sizeof(float), "inlined bytes");
  std::memcpy(memory_->At(a.to.buffer).data() + a.to.range.first, a.bytes.data(), a.bytes.size());
  ++world_->inlined;
}

// --- the reduction thread

void SimWorker::Queue(std::uint64_t op, std::function<void(event::OpDone*)> run) {
  ops_.push_back({op, std::move(run)});
  if (!op_under_way_) RunNextOp();
}

void SimWorker::RunNextOp() {
  if (ops_.empty()) return;
  op_under_way_ = true;
  host_->After(Delay() / 2, [this] {
    auto [op, run] = std::move(ops_.front());
    ops_.pop_front();
    event::OpDone done;
    done.op = op;
    run(&done);
    op_under_way_ = false;
    RunNextOp();
    Handle(done);
  });
}

bool SimWorker::Read(const Source& source, const FloatRange& range, std::vector<float>* to) {
  std::shared_ptr<Memory> memory = memory_;
  if (source.peer) {
    LOCKSTEP_CHECK(mapped_.contains(*source.peer), "reads a peer that is not mapped");
    memory = mapped_[*source.peer];
    if (memory->GenerationOf(source.buffer) != source.generation) return false;
    ++world_->read_in_place;
  }
  const auto& from = memory->At(source.buffer);
  std::copy_n(from.begin() + static_cast<std::ptrdiff_t>(range.first), range.count,
              to->begin() + static_cast<std::ptrdiff_t>(range.first));
  return true;
}

void SimWorker::Do(const action::Reduce& a) {
  Queue(a.op, [this, a](event::OpDone* done) {
    std::vector<float>& out = memory_->At(a.out);
    std::vector<float> input(out.size());
    bool first = true;
    for (const action::ReduceInput& in : a.inputs) {
      for (const Slice& slice : a.slices) {
        if (!Read(in.source, slice.range, &input)) done->torn = true;
        for (std::uint64_t i = slice.range.first; i < slice.range.end(); ++i) {
          const float term = in.weight * input[i];
          out[i] = first ? term : out[i] + term;
        }
      }
      first = false;
    }
    if (a.norms) {
      for (const Slice& slice : a.slices) AddNorms(world_->layout, slice, &out);
    }
  });
}

void SimWorker::Do(const action::CopySums& a) {
  world_->counts["copy sums"]++;
  Queue(a.op, [this, a](event::OpDone* done) {
    for (const action::SourceRange& from : a.from) {
      if (!Read(from.source, from.range, &memory_->At(a.to))) done->torn = true;
    }
  });
}

void SimWorker::Do(const action::Apply& a) {
  LOCKSTEP_CHECK(!in_unit_, "the parameters change under a unit");
  Queue(a.op, [this, a](event::OpDone* done) {
    std::vector<float> sum(world_->layout.sum_floats(), 0.0f);
    std::vector<FloatRange> ranges;
    for (const auto* list : {&a.slices, &a.norms}) {
      for (const action::SourceRange& from : *list) {
        if (!Read(from.source, from.range, &sum)) done->torn = true;
      }
    }
    for (const action::SourceRange& slice : a.slices) ranges.push_back(slice.range);
    const float factor = ClipFactor(world_->layout, sum, a.scale, a.clip);
    Update(sum, ranges, a.scale, a.learning_rate, factor, &memory_->state);
    const FloatRange& bucket = world_->layout.bucket(a.digest_bucket);
    done->digest = Digest(memory_->state.parameters.data() + bucket.first, bucket.count);
    std::uint64_t floats = 0;
    for (const FloatRange& range : ranges) floats += range.count;
    if (done->torn || floats < world_->layout.parameter_count()) return;
    const std::string error = world_->CheckApplied(a.round, a.attempt, memory_->state);
    if (!error.empty()) world_->errors.push_back(fmt::format("worker {}: {}", self_.worker, error));
  });
}

void SimWorker::Do(const action::CopyState& a) {
  Queue(a.op, [this, a](event::OpDone*) {
    const FloatRange& bucket = world_->layout.bucket(a.bucket);
    auto& out = memory_->At(a.to);
    const auto first = static_cast<std::ptrdiff_t>(bucket.first);
    std::copy_n(memory_->state.parameters.begin() + first, bucket.count, out.begin());
    std::copy_n(memory_->state.momentum.begin() + first, bucket.count,
                out.begin() + static_cast<std::ptrdiff_t>(world_->layout.largest_bucket()));
  });
}

void SimWorker::Do(const action::TakeSnapshot& a) {
  Queue(a.op, [](event::OpDone*) {});
}

void SimWorker::Do(const action::DigestState& a) {
  Queue(a.op, [this](event::OpDone* done) {
    const auto& p = memory_->state.parameters;
    done->text = fmt::format("{:016x}", Digest(p.data(), p.size()));
  });
}

void SimWorker::Do(const action::UploadChunk& a) {
  host_->Send(StateChunk{a.round, a.tensor, a.offset, a.last, std::vector<std::byte>(a.bytes)});
  host_->After(Delay(), [this] { Handle(event::ChunkUploaded{}); });
}

void SimWorker::Do(const action::EvaluateChunk& a) {
  host_->After(Delay(), [this, a] {
    Handle(event::ChunkEvaluated{a.evaluation, a.range, static_cast<double>(a.range.size()),
                                 a.range.size() / 2});
  });
}

void SimWorker::Do(const action::SetTimer& a) {
  const std::uint64_t number = ++timer_;
  host_->After(std::max(Duration{}, a.at - host_->now()), [this, number] {
    if (number == timer_) Handle(event::TimerDue{});
  });
}

void SimWorker::Do(const action::Log& a) { world_->counts[a.line.substr(0, a.line.find(' '))]++; }

// --- the compute thread

void SimWorker::Do(const action::StartWork& a) {
  LOCKSTEP_CHECK(!in_unit_, "new work within a unit");
  work_ = a;
  part_begun_ = {};
  Compute();
}

void SimWorker::Compute() {
  if (in_unit_ || !work_) return;
  const UnitQueue::Take take = machine_->queue().TakeNext();
  if (take.kind == UnitQueue::TakeKind::kNone) return;
  in_unit_ = true;
  if (take.kind == UnitQueue::TakeKind::kSeal) {
    host_->After(Delay(), [this, take] {
      in_unit_ = false;
      Seal(take);
      Compute();
    });
    return;
  }
  auto time = world_->options.unit_time / 2 +
              Duration(host_->random().NextBelow(
                  static_cast<std::uint64_t>(world_->options.unit_time.count())));
  if (world_->options.slow.contains(self_.worker.value)) {
    time = Duration(
        static_cast<std::int64_t>(static_cast<double>(time.count()) * world_->options.slow_factor));
  }
  const std::int64_t start = host_->now().time_since_epoch().count();
  host_->After(time, [this, take, start, parameters = memory_->state.parameters] {
    FinishUnit(take, start, parameters);
  });
}

void SimWorker::FinishUnit(const UnitQueue::Take& take, std::int64_t start_ns,
                           const std::vector<float>& parameters) {
  const bool is_void = machine_->queue().IsVoid();
  auto& gradient = memory_->At(work_->parts[take.part.value]);
  if (!part_begun_[take.part.value]) gradient.assign(gradient.size(), 0.0f);
  part_begun_[take.part.value] = true;
  if (!is_void) {
    if (parameters != memory_->state.parameters) {
      world_->errors.push_back("the parameters changed under a unit");
    }
    AddGradient(take.unit.range, parameters, &gradient);
  }
  const std::uint32_t work = work_->work;
  if (take.last) {
    const auto buckets = world_->layout.bucket_count();
    for (std::uint32_t b = 1; b < buckets; b += 1 + buckets / 3) {
      Handle(event::BucketsFinal{work, take.part, b});
    }
  }
  // Its last use of the parameters is over, so they may change in the next step.
  in_unit_ = false;
  const std::int64_t end = host_->now().time_since_epoch().count();
  if (take.last) in_unit_ = true;
  Handle(event::UnitDone{work, take.part, take.unit.range.size(),
                         static_cast<double>(take.unit.range.size()),
                         UnitTiming{take.unit, start_ns, end}});
  if (take.last) {
    in_unit_ = false;
    Seal(take);
  }
  Compute();
}

void SimWorker::Seal(const UnitQueue::Take& take) {
  world_->OnSealed(self_, work_->round, take.part, memory_->At(work_->parts[take.part.value]));
  Handle(event::PartSealed{take.work, take.part, host_->now().time_since_epoch().count()});
}

}  // namespace lockstep::worker::sim
