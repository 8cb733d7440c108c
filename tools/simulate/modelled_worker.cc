#include "tools/simulate/modelled_worker.h"

#include <algorithm>
#include <utility>

#include "base/overloaded.h"
#include "tools/simulate/modelled_machine.h"

namespace lockstep::simulate {

ModelledWorker::ModelledWorker(WorkerHost* host, ModelledExchange* exchange)
    : host_(host), exchange_(exchange) {}
ModelledWorker::~ModelledWorker() = default;

void ModelledWorker::OnConnected() {
  msg::Hello hello;
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

void ModelledWorker::OnMessage(const msg::ToWorker& message) {
  if (machine_) machine_->context.now = host_->now();
  std::visit(Overloaded{
                 [&](const msg::Welcome& m) { OnWelcome(m); },
                 [&](const msg::Form& m) { OnForm(m); },
                 [&](const msg::Start& m) { OnStart(m); },
                 [&](const msg::Commit& m) { OnCommit(m); },
                 [&](const msg::Revoke& m) { machine_->own.OnRevoke(m); },
                 [&](const msg::Assign& m) { machine_->own.OnAssign(m); },
                 [&](const msg::FenceRound& m) { machine_->own.OnFence(m); },
                 [&](const msg::NewOwners& m) { OnNewOwners(m); },
                 [&](const msg::FenceAttempt& m) { OnFenceAttempt(m); },
                 [&](const msg::Hedge& m) { OnHedge(m); },
                 [](const msg::Decide&) {},  // not modelled (options.cc)
                 [&](const msg::TakeSums& m) { OnTakeSums(m); },
                 [&](const msg::CatchUp& m) { OnCatchUp(m); },
                 [&](const msg::Evaluate& m) { OnEvaluate(m); },
                 [&](const msg::Finish& m) { OnFinish(m); },
                 [&](const msg::Ping& m) { OnPing(m); },
                 [](const msg::Refuse&) {},
                 [](const msg::MemberLeft&) {},
                 [](const msg::StateChunk&) {},
                 [](const msg::SetSlowdown&) {},
                 [](const msg::GiveParameters&) {},  // all have the seed's
                 [](const msg::Standbys&) {},        // a simulation has none
                 [](const msg::Followed&) {},
                 [](const msg::AskToLeave&) {},  // only the HTTP door asks
             },
             message);
  if (machine_) Settle();
}

void ModelledWorker::OnWelcome(const msg::Welcome& m) {
  self_ = m.self;
  host_->SetSelf(self_);
  worker::MachineConfig config = exchange_->options.machine;
  config.self = self_;
  config.term = m.term;
  config.takes_costs = m.takes_costs;
  machine_ = std::make_unique<Machine>(std::move(config), exchange_->layout);
  machine_->context.now = host_->now();
  exchange_->Enter(self_.worker, this);
  msg::Ready ready;
  ready.transports.push_back({"tcp", "address", ""});
  ready.dataset_digest = "simulated";
  ready.train_samples = exchange_->options.train_samples;
  ready.parameter_count = 1;
  host_->Send(ready);
}

// In the order of the message: first those that it connects to.
void ModelledWorker::OnForm(const msg::Form& m) {
  const auto own = static_cast<std::ptrdiff_t>(m.expect.size());
  host_->SendMade([exchange = exchange_, self = self_, formation = m.formation, own,
                   members = exchange_->Forming(m, self_)] {
    msg::Reached reached;
    reached.formation = formation;
    reached.peers.reserve(members->size() - 1);
    const auto add = [&](auto first, auto last) {
      for (auto peer = first; peer != last; ++peer) {
        const bool mapped = !exchange->Witnesses(self.worker, peer->worker);
        reached.peers.push_back(
            {*peer, true, "", mapped, "modelled", exchange->options.measured_gb_per_second});
      }
    };
    add(members->begin() + own + 1, members->end());
    add(members->begin(), members->begin() + own);
    return msg::FromWorker(std::move(reached));
  });
}

void ModelledWorker::OnStart(const msg::Start& m) {
  if (m.source != StateSource::kPeers && !has_state_) {
    has_state_ = true;
    next_ = m.plan.round;
  }
  const RoundId round = m.plan.round;
  if (const Committed* committed = FindCommitted(round); committed && committed->refused) {
    // The round is open again.
    std::erase_if(committed_, [round](const Committed& c) { return c.round == round; });
    std::erase_if(received_, [round](const Received& r) { return r.round == round; });
    machine_->own.Forget(round.Next());
  }
  Adopt(m.plan);
  if (m.checkpoint_writer && has_state_ && next_ == round) {
    TakePartInCheckpoint(
        {RoundId(round.value - 1), Attempt(), m.checkpoint_writer, host_->now(), false});
  }
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
  if (KnownCosts* known = exchange_->options.costs.get(); known != nullptr) {
    if (!told_costs_ || *told_costs_ < plan.epoch) {
      machine_->costs.OnGiven(known->Of(plan.epoch));
      machine_->costs.OnGiven(known->Of(plan.epoch.Next()));
      told_costs_ = plan.epoch;
    }
    machine_->costs.OnPlan(plan);
  }
  plan_ = own;
  plan_->assignments.clear();
  TakeUnits(own);
  TakeOwners(plan.round, plan.owners);
}

void ModelledWorker::TakeUnits(const Plan& own) {
  if (own.round < machine_->rounds.first_not_closed()) return;
  machine_->rounds.At(own.round).plan = own.attempt;
  machine_->own.OnPlan(own);
}

void ModelledWorker::TakeOwners(RoundId round, const OwnerMap& map) {
  owning_ = {round, map.version, FindOwner(map, self_) != nullptr, map.direct()};
  SayReceived();
}

void ModelledWorker::OnDelivered(RoundId round, const ReceivedPart& part) {
  if (carries_) round = std::max(round, owning_.round);  // work that continued meanwhile
  received_.push_back({round, part});
  if (owning_.round != round || !owning_.owner) return;
  host_->Send(msg::Receipts{round, owning_.version, {part}});
}

// It is called under a new map, or for parts that came before the plan.
void ModelledWorker::SayReceived() {
  std::erase_if(received_, [this](const Received& r) { return r.round < owning_.round; });
  msg::Receipts receipts{owning_.round, owning_.version, {}};
  for (const Received& received : received_) {
    if (received.round == owning_.round) receipts.parts.push_back(received.part);
  }
  if (owning_.owner && !receipts.parts.empty()) host_->Send(std::move(receipts));
}

void ModelledWorker::OnCommit(const msg::Commit& m) {
  if (!std::ranges::binary_search(m.members, self_)) return;
  const Committed* known = FindCommitted(m.round);
  const bool again = known != nullptr && known->attempt == m.attempt;
  if (known != nullptr && known->attempt > m.attempt) return;
  const auto writer = known != nullptr ? known->checkpoint_writer : std::nullopt;
  Remember(m);
  if (again) {
    if (writer != m.checkpoint_writer && has_state_ && next_ > m.round) {
      TakePartInCheckpoint(*FindCommitted(m.round));
    }
    return;
  }
  carries_ = m.next && m.next->carries;
  machine_->rounds.OnCommitted(m.round);
  machine_->own.OnCommit(m);
  machine_->rounds.Prune(m.round);
  if (carries_) {
    for (Received& received : received_) {
      const bool counted = std::ranges::any_of(m.parts, [&](const CommittedPart& part) {
        return part.member == received.part.member && part.part == received.part.part;
      });
      if (received.round == m.round && !counted) received.round = m.round.Next();
    }
  }
  exchange_->OnCommitted(host_->now());
  if (m.next) Adopt(*m.next);
  Publish(m);
  LookForLoss(m.round);
}

void ModelledWorker::OnNewOwners(const msg::NewOwners& m) {
  if (FindCommitted(m.round) == nullptr) TakeOwners(m.round, m.owners);
}

void ModelledWorker::OnEvaluate(const msg::Evaluate& m) {
  host_->Send(msg::EvaluationResult{m.evaluation, m.range, 0, 0});
}

void ModelledWorker::OnFinish(const msg::Finish& m) {
  finished_ = true;
  if (!m.failed && has_state_ && next_.value > 0) {
    host_->Send(msg::Final{RoundId(next_.value - 1), "simulated"});
  }
}

void ModelledWorker::OnPing(const msg::Ping& m) {
  host_->Send(msg::Pong{m.sequence, m.sent_ns, host_->now().time_since_epoch().count(), 0, {}});
}

}  // namespace lockstep::simulate
