#include "tools/simulate/modelled_worker.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace lockstep::simulate {

using worker::UnitQueue;
namespace action = worker::action;
namespace event = worker::event;

namespace {

constexpr std::size_t kRoundsKept = 6;

bool Contains(const std::vector<MemberId>& ascending, const MemberId& id) {
  return std::binary_search(ascending.begin(), ascending.end(), id);
}

const OwnerShare* FindOwner(const OwnerMap& map, const MemberId& id) {
  const auto at = std::lower_bound(
      map.owners.begin(), map.owners.end(), id,
      [](const OwnerShare& share, const MemberId& member) { return share.owner < member; });
  return at != map.owners.end() && at->owner == id ? &*at : nullptr;
}

}  // namespace

// --- what all have in common

ModelledExchange::ModelledExchange(Options o, ComputeModel* c, std::uint32_t workers)
    : options(std::move(o)),
      compute(c),
      layout({{0, 1}}, 4096),
      workers_(workers),
      out_free_(workers) {
  slowest_ = options.network.BandwidthOf(0);
  for (std::uint32_t m = 0; m < workers; ++m) {
    slowest_ = std::min(slowest_, options.network.BandwidthOf(m));
  }
}

ModelledWorker* ModelledExchange::Find(const MemberId& id) const {
  ModelledWorker* worker = workers_[id.worker.value];
  return worker != nullptr && worker->self() == id ? worker : nullptr;
}

bool ModelledExchange::Witnesses(WorkerId a, WorkerId b) const {
  const auto [low, high] = std::minmax(a.value, b.value);
  const auto last = static_cast<std::uint32_t>(workers_.size() - 1);
  if (low % 2 == 0 && high == low + 1) return true;
  return low == 0 && high == last && last % 2 == 0 && last > 0;  // the one without a neighbour
}

std::vector<WorkerId> ModelledExchange::WitnessesOf(WorkerId slot) const {
  std::vector<WorkerId> witnesses;
  const auto last = static_cast<std::uint32_t>(workers_.size() - 1);
  for (const std::uint32_t other : {slot.value ^ 1u, 0u, last}) {
    const WorkerId id(other);
    if (other > last || !Witnesses(slot, id) ||
        std::find(witnesses.begin(), witnesses.end(), id) != witnesses.end()) {
      continue;
    }
    witnesses.push_back(id);
  }
  return witnesses;
}

Duration ModelledExchange::Transfer(double bytes, std::uint32_t machine) const {
  return FromSeconds(bytes / options.network.BandwidthOf(machine));
}

Time ModelledExchange::Deliver(WorkerId worker, std::uint32_t machine, Time now) {
  if (options.delivery) return now + options.delivery(worker, now - Simulation::kStart);
  const auto owners = static_cast<double>(workers_.size());
  const auto bytes = static_cast<double>(options.model_bytes);
  // It is announced and asked for, then it leaves as a whole while each owner takes its shard.
  const Duration latency = options.network.latency;
  const Time begins = std::max(now + 2 * latency, out_free_[machine]);
  out_free_[machine] = begins + Transfer(bytes * (owners - 1) / owners, machine);
  owners_free_ = std::max(owners_free_, begins + latency) + FromSeconds(bytes / owners / slowest_);
  return std::max(out_free_[machine] + latency, owners_free_);
}

ModelledExchange::Publication* ModelledExchange::FindPublication(RoundId round, Attempt attempt) {
  for (Publication& sums : publications_) {
    if (sums.round == round && sums.attempt == attempt) return &sums;
  }
  return nullptr;
}

ModelledExchange::Publication& ModelledExchange::Of(const Commit& commit) {
  if (Publication* known = FindPublication(commit.round, commit.attempt)) return *known;
  if (publications_.size() == kRoundsKept) publications_.pop_front();
  Publication sums;
  sums.round = commit.round;
  sums.attempt = commit.attempt;
  sums.parts = commit.parts.size();
  sums.missing = commit.owners.owners.size();
  for (const OwnerShare& share : commit.owners.owners) sums.weights += share.weight;
  publications_.push_back(std::move(sums));
  return publications_.back();
}

Duration ModelledExchange::ReduceTime(const Publication& sums, std::uint32_t weight) const {
  if (options.apply) return {};
  const double share = static_cast<double>(weight) / static_cast<double>(sums.weights);
  const double bytes = static_cast<double>(options.model_bytes) * share;
  return FromSeconds(bytes * static_cast<double>(sums.parts) /
                     options.network.memory_bytes_per_second);
}

Duration ModelledExchange::SendTime(const Publication& sums, std::uint32_t weight,
                                    std::uint32_t machine) const {
  const double share = static_cast<double>(weight) / static_cast<double>(sums.weights);
  const double bytes = static_cast<double>(options.model_bytes) * share;
  return Transfer(bytes * static_cast<double>(workers_.size() - 1), machine);
}

Duration ModelledExchange::TakeTime(std::uint32_t machine) const {
  const auto members = static_cast<double>(workers_.size());
  return Transfer(static_cast<double>(options.model_bytes) * (members - 1) / members, machine);
}

Duration ModelledExchange::UpdateTime() const {
  return FromSeconds(3 * static_cast<double>(options.model_bytes) /
                     options.network.memory_bytes_per_second);
}

// --- one worker

struct ModelledWorker::Machine {
  Machine(worker::MachineConfig config, const worker::Layout& layout)
      : context(std::move(config), layout),
        buffers(context),
        peers(context),
        maps(context),
        own(context, buffers, peers, maps) {}

  worker::Context context;
  worker::Buffers buffers;
  worker::Peers peers;     // knows nobody
  worker::RoundMaps maps;  // empty: OwnWork announces nothing
  worker::OwnWork own;
  worker::Actions actions;  // being carried out
};

ModelledWorker::ModelledWorker(WorkerHost* host, ModelledExchange* exchange)
    : host_(host), exchange_(exchange) {}
ModelledWorker::~ModelledWorker() = default;

void ModelledWorker::OnStart() {
  Hello hello;
  hello.version = "simulated";
  hello.host = "simulated";
  hello.pid = host_->machine();
  hello.device = "cpu";
  hello.wanted = host_->wanted();
  host_->Send(hello);
}

void ModelledWorker::OnKilled() {
  if (machine_) exchange_->Leave(self_.worker, this);
}

void ModelledWorker::OnMessage(const ToWorker& message) {
  if (machine_) machine_->context.now = host_->now();
  std::visit([this](const auto& m) { On(m); }, message);
  if (machine_) Settle();
}

void ModelledWorker::On(const Welcome& m) {
  self_ = m.self;
  host_->SetSelf(self_);
  worker::MachineConfig config = exchange_->options.machine;
  config.self = self_;
  config.term = m.term;
  machine_ = std::make_unique<Machine>(std::move(config), exchange_->layout);
  machine_->context.now = host_->now();
  exchange_->Enter(self_.worker, this);
  Ready ready;
  ready.transports.push_back({"tcp", "address", ""});
  ready.dataset_digest = "simulated";
  ready.train_samples = exchange_->options.train_samples;
  ready.parameter_count = 1;
  host_->Send(ready);
}

void ModelledWorker::On(const Form& m) {
  Reached reached;
  reached.formation = m.formation;
  reached.peers.reserve(m.connect_to.size() + m.expect.size());
  for (const auto* list : {&m.connect_to, &m.expect}) {
    for (const PeerInfo& peer : *list) {
      const bool mapped = !exchange_->Witnesses(self_.worker, peer.member.worker);
      reached.peers.push_back({peer.member, true, "", mapped, "modelled", 0});
    }
  }
  host_->Send(std::move(reached));
}

void ModelledWorker::On(const Start& m) {
  if (m.source != StateSource::kPeers && !has_state_) {
    has_state_ = true;
    next_ = m.plan.round;
  }
  const RoundId round = m.plan.round;
  if (const Committed* committed = FindCommitted(round); committed && committed->refused) {
    // It is open again.
    std::erase_if(committed_, [round](const Committed& c) { return c.round == round; });
    std::erase_if(received_, [round](const Received& r) { return r.round == round; });
    machine_->own.Forget(round.Next());
  }
  Adopt(m.plan);
}

void ModelledWorker::Adopt(const Plan& plan) {
  Plan own;
  own.round = plan.round;
  own.epoch = plan.epoch;
  own.relaxed = plan.relaxed;
  own.carries = plan.carries;
  own.local_rate = plan.local_rate;
  own.attempt = plan.attempt;
  const auto at = std::lower_bound(
      plan.assignments.begin(), plan.assignments.end(), self_,
      [](const Assignment& assignment, const MemberId& id) { return assignment.member < id; });
  if (at != plan.assignments.end() && at->member == self_) own.assignments.push_back(*at);
  machine_->own.OnPlan(own);
  TakeOwners(plan.round, plan.owners);
}

void ModelledWorker::TakeOwners(RoundId round, const OwnerMap& map) {
  owning_ = {round, map.version, FindOwner(map, self_) != nullptr};
  SayReceived();
}

void ModelledWorker::OnDelivered(RoundId round, const ReceivedPart& part) {
  if (carries_) round = std::max(round, owning_.round);  // work that was carried on meanwhile
  received_.push_back({round, part});
  if (owning_.round != round || !owning_.owner) return;
  host_->Send(Receipts{round, owning_.version, {part}});
}

// Under a new map, or parts that were there before the plan was.
void ModelledWorker::SayReceived() {
  std::erase_if(received_, [this](const Received& r) { return r.round < owning_.round; });
  Receipts receipts{owning_.round, owning_.version, {}};
  for (const Received& received : received_) {
    if (received.round == owning_.round) receipts.parts.push_back(received.part);
  }
  if (owning_.owner && !receipts.parts.empty()) host_->Send(std::move(receipts));
}

ModelledWorker::Committed* ModelledWorker::FindCommitted(RoundId round) {
  for (Committed& committed : committed_) {
    if (committed.round == round) return &committed;
  }
  return nullptr;
}

void ModelledWorker::Remember(const Commit& m) {
  std::erase_if(committed_, [&m](const Committed& c) { return c.round == m.round; });
  if (committed_.size() == kRoundsKept) committed_.pop_front();
  committed_.push_back({m.round, m.attempt, m.epoch, m.checkpoint_writer, host_->now(), false});
}

void ModelledWorker::On(const Commit& m) {
  if (!Contains(m.members, self_)) return;
  const Committed* known = FindCommitted(m.round);
  const bool again = known != nullptr && known->attempt == m.attempt;
  if (known != nullptr && known->attempt > m.attempt) return;
  const bool streams = again && known->checkpoint_writer == self_;
  Remember(m);
  if (again) {
    if (!streams && m.checkpoint_writer == self_ && has_state_ && next_ > m.round) {
      WriteCheckpoint(m.round);
    }
    return;
  }
  carries_ = m.next && m.next->carries;
  if (carries_) {
    machine_->own.CarryOver(m);
    for (Received& received : received_) {
      const bool counted = std::ranges::any_of(m.parts, [&](const CommittedPart& part) {
        return part.member == received.part.member && part.part == received.part.part;
      });
      if (received.round == m.round && !counted) received.round = m.round.Next();
    }
  } else {
    machine_->own.Stop(m.round.Next());
  }
  machine_->own.ReleaseBefore(m.round);
  exchange_->OnCommitted(host_->now());
  if (m.next) Adopt(*m.next);
  Publish(m);
  LookForLoss(m.round);
}

// As a worker's Core does: one that a unit holds for long lets too many rounds wait.
void ModelledWorker::LookForLoss(RoundId latest) {
  if (!has_state_ || applying_ || latest.value + 1 - next_.value <= worker::kSumBuffers) return;
  has_state_ = false;
  machine_->own.StopAll();
  host_->Send(Behind{RoundId(next_.value > 0 ? next_.value - 1 : 0), next_.value > 0,
                     "too many rounds wait to be applied"});
}

void ModelledWorker::Publish(const Commit& m) {
  ModelledExchange::Publication& sums = exchange_->Of(m);
  const OwnerShare* share = FindOwner(m.owners, self_);
  if (share == nullptr) return;
  host_->After(exchange_->ReduceTime(sums, share->weight),
               [this, round = m.round, attempt = m.attempt, weight = share->weight] {
                 auto* done = exchange_->FindPublication(round, attempt);
                 if (done == nullptr || done->missing == 0) return;
                 host_->Send(Published{round, attempt});
                 const Time now = host_->now();
                 done->last = std::max(done->last, now);
                 done->sent = std::max(done->sent,
                                       now + exchange_->SendTime(*done, weight, host_->machine()));
                 if (--done->missing > 0) return;
                 for (const auto& [worker, id] : std::exchange(done->waiting, {})) {
                   if (exchange_->Find(id) == worker) worker->OnPublished();
                 }
               });
}

void ModelledWorker::OnPublished() {
  // It may be stopped: then it looks when it runs again.
  host_->At(host_->now(), [this] {
    machine_->context.now = host_->now();
    Settle();
  });
}

void ModelledWorker::TryApply() {
  if (!has_state_ || applying_ || machine_->own.UsesParameters()) return;
  const Committed* committed = FindCommitted(next_);
  if (committed == nullptr || committed->refused) return;
  auto* sums = exchange_->FindPublication(committed->round, committed->attempt);
  if (sums == nullptr) return;
  if (sums->missing > 0) {
    const std::pair attempt(sums->round, sums->attempt);
    if (waits_for_ != attempt) sums->waiting.emplace_back(this, self_);
    waits_for_ = attempt;
    return;
  }
  applying_ = true;
  if (const auto& measured = exchange_->options.apply) {
    const Time at = committed->at + measured(self_.worker, committed->at - Simulation::kStart);
    host_->At(std::max(host_->now(), at),
              [this, round = sums->round, attempt = sums->attempt] { OnApplied(round, attempt); });
    return;
  }
  const Duration latency = exchange_->options.network.latency;
  const Time taken =
      std::max(sums->sent, sums->last + exchange_->TakeTime(host_->machine())) + latency;
  host_->At(std::max(host_->now(), taken) + exchange_->UpdateTime(),
            [this, round = sums->round, attempt = sums->attempt] { OnApplied(round, attempt); });
}

void ModelledWorker::OnApplied(RoundId round, Attempt attempt) {
  applying_ = false;
  machine_->context.now = host_->now();
  const Committed* committed = FindCommitted(round);
  if (has_state_ && next_ == round && committed != nullptr && committed->attempt == attempt) {
    next_ = round.Next();
    host_->Send(Applied{round, attempt, 0, round.value, host_->now().time_since_epoch().count()});
    if (committed->checkpoint_writer == self_) WriteCheckpoint(round);
  }
  Settle();
}

// As little as the coordinator takes for a whole one.
void ModelledWorker::WriteCheckpoint(RoundId round) {
  host_->Send(StateChunk{round, 0, 0, true, std::vector<std::byte>(sizeof(float))});
}

void ModelledWorker::On(const Revoke& m) { machine_->own.OnRevoke(m); }
void ModelledWorker::On(const Assign& m) { machine_->own.OnAssign(m); }
void ModelledWorker::On(const FenceRound& m) { machine_->own.OnFence(m.round); }

void ModelledWorker::On(const NewOwners& m) {
  if (FindCommitted(m.round) == nullptr) TakeOwners(m.round, m.owners);
}

void ModelledWorker::On(const FenceAttempt& m) {
  const auto* sums = exchange_->FindPublication(m.round, m.attempt);
  const bool holds = has_state_ && (next_ > m.round ||
                                    (next_ == m.round && sums != nullptr && sums->missing == 0));
  if (Committed* committed = FindCommitted(m.round); committed != nullptr && !holds) {
    committed->refused = true;
  }
  host_->Send(HoldAnswer{m.term, m.round, m.attempt, holds});
}

void ModelledWorker::On(const TakeSums& m) {
  Remember(m.commit);
  auto& sums = exchange_->Of(m.commit);
  sums.missing = 0;
  sums.last = sums.sent = std::max(sums.last, host_->now());
}

void ModelledWorker::On(const CatchUp& m) {
  has_state_ = false;
  machine_->own.StopAll();
  const std::uint32_t order = ++copies_;
  const Duration copy =
      2 * exchange_->options.network.latency + 2 * exchange_->TakeTime(host_->machine());
  host_->After(copy, [this, m, order] { TryToCopy(m.donor, m.open_round, order); });
}

void ModelledWorker::TryToCopy(const MemberId& donor, RoundId open_round, std::uint32_t order) {
  if (order != copies_) return;
  const ModelledWorker* from = exchange_->Find(donor);
  const auto next = from == nullptr ? std::nullopt : from->next();
  // Parameters change only while no unit is computed.
  if (!next || *next < open_round || machine_->own.Busy()) {
    host_->After(std::chrono::milliseconds(5),
                 [this, donor, open_round, order] { TryToCopy(donor, open_round, order); });
    return;
  }
  machine_->context.now = host_->now();
  has_state_ = true;
  next_ = *next;
  host_->Send(Level{RoundId(next_.value - 1)});
  Settle();
}

void ModelledWorker::On(const Evaluate& m) {
  host_->Send(EvaluationResult{m.evaluation, m.range, 0, 0});
}

void ModelledWorker::On(const Finish& m) {
  finished_ = true;
  if (!m.failed && has_state_ && next_.value > 0) {
    host_->Send(Final{RoundId(next_.value - 1), "simulated"});
  }
}

void ModelledWorker::On(const Ping& m) {
  host_->Send(Pong{m.sequence, m.sent_ns, host_->now().time_since_epoch().count()});
}

// --- its compute thread

void ModelledWorker::Settle() {
  worker::OwnWork& own = machine_->own;
  own.Update();
  TryApply();
  if (has_state_ && !applying_ && !finished_) {
    own.BeginIfPossible(next_, FindCommitted(next_) != nullptr);
  }
  worker::Actions& emitted = machine_->context.actions;
  while (!emitted.empty()) {
    std::swap(emitted, machine_->actions);
    for (worker::Action& action : machine_->actions) CarryOut(action);
    machine_->actions.clear();
  }
  const Time next = own.next_timer();
  if (next >= timer_) return;
  timer_ = next;
  host_->At(std::max(next, host_->now()), [this] {
    timer_ = kNever;
    machine_->context.now = host_->now();
    machine_->own.OnTimer();
    Settle();
  });
}

void ModelledWorker::CarryOut(worker::Action& action) {
  if (auto* tell = std::get_if<action::ToCoordinator>(&action)) {
    host_->Send(std::move(tell->message));
  } else if (const auto* start = std::get_if<action::StartWork>(&action)) {
    work_ = *start;
    Compute();
  } else if (std::holds_alternative<action::WakeCompute>(action)) {
    Compute();
  } else if (const auto* copy = std::get_if<action::TakeSnapshot>(&action)) {
    host_->After(exchange_->UpdateTime(), [this, op = copy->op] {
      machine_->context.now = host_->now();
      worker::event::OpDone done;
      done.op = op;
      machine_->own.OnOpDone(done);
      Settle();
    });
  } else if (std::holds_alternative<action::VoidWork>(action)) {
    if (!in_unit_ || take_.kind != UnitQueue::TakeKind::kUnit) return;
    const auto at = exchange_->compute->LetsGo(self_.worker, work_->round, take_.unit,
                                               unit_started_, host_->now());
    if (at) host_->At(*at, [this, unit = unit_] { EndUnit(unit); });
  }
}

void ModelledWorker::Compute() {
  if (in_unit_ || !work_) return;
  take_ = machine_->own.queue().TakeNext();
  if (take_.kind == UnitQueue::TakeKind::kNone) return;
  in_unit_ = true;
  unit_started_ = host_->now();
  const std::uint64_t unit = ++unit_;
  const Duration takes =
      take_.kind == UnitQueue::TakeKind::kSeal
          ? Duration{}
          : exchange_->compute->UnitTime(self_.worker, host_->now(), work_->round, take_.unit,
                                         host_->random());
  host_->After(takes, [this, unit] { EndUnit(unit); });
}

// Ends it, perhaps before its time because it is void; the later call finds another unit.
void ModelledWorker::EndUnit(std::uint64_t unit) {
  if (!in_unit_ || unit != unit_) return;
  machine_->context.now = host_->now();
  const UnitQueue::Take take = take_;
  if (take.kind == UnitQueue::TakeKind::kUnit) {
    machine_->own.OnUnitDone({take.work, take.part, take.unit.range.size(), 0,
                              UnitTiming{take.unit, unit_started_.time_since_epoch().count(),
                                         host_->now().time_since_epoch().count()}});
  }
  in_unit_ = false;
  if (take.last || take.kind == UnitQueue::TakeKind::kSeal) Seal(take);
  Compute();
  Settle();
}

void ModelledWorker::Seal(const UnitQueue::Take& take) {
  const Time now = host_->now();
  const std::int64_t sealed_ns = now.time_since_epoch().count();
  if (machine_->own.queue().IsVoid()) {
    machine_->own.OnPartSealed({take.work, take.part, sealed_ns});
    return;
  }
  const Time delivered = exchange_->Deliver(self_.worker, host_->machine(), now);
  bool witnessed = false;
  for (const WorkerId slot : exchange_->WitnessesOf(self_.worker)) {
    if (exchange_->Find(slot) == nullptr) continue;
    witnessed = true;
    // As the witness sees it, with this one's part as it is now.
    exchange_->Find(slot)->host_->At(
        delivered, [witness = exchange_->Find(slot), round = work_->round,
                    part = ReceivedPart{self_, take.part}] { witness->OnDelivered(round, part); });
  }
  if (witnessed) {
    machine_->own.OnPartSealed({take.work, take.part, sealed_ns});
    return;
  }
  // Nobody tells the coordinator later: so it learns of the part when it is delivered.
  host_->At(delivered, [this, take, sealed_ns] {
    machine_->context.now = host_->now();
    machine_->own.OnPartSealed({take.work, take.part, sealed_ns});
    Settle();
  });
}

}  // namespace lockstep::simulate
