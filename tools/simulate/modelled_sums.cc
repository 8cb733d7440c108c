// A modelled worker's role in the sums: it publishes its shard, applies, promises, and catches up.
#include <algorithm>
#include <utility>

#include "tools/simulate/modelled_machine.h"

namespace lockstep::simulate {
namespace {

constexpr std::uint64_t kCopyParts = 8;  // the number of messages in which a copy reports its
                                         // progress

}  // namespace

ModelledWorker::Committed* ModelledWorker::FindCommitted(RoundId round) {
  for (Committed& committed : committed_) {
    if (committed.round == round) return &committed;
  }
  return nullptr;
}

void ModelledWorker::Remember(const msg::Commit& m) {
  std::erase_if(committed_, [&m](const Committed& c) { return c.round == m.round; });
  if (committed_.size() == ModelledExchange::kRoundsKept) committed_.pop_front();
  committed_.push_back({m.round, m.attempt, m.checkpoint_writer, host_->now(), false});
}

// It follows a worker's Core: a worker that a unit holds for long lets too many rounds wait.
void ModelledWorker::LookForLoss(RoundId latest) {
  if (!has_state_ || applying_ || latest.value + 1 - next_.value <= worker::kSumBuffers) return;
  has_state_ = false;
  machine_->own.StopAll();
  host_->Send(msg::Behind{RoundId(next_.value > 0 ? next_.value - 1 : 0), next_.value > 0,
                          "more rounds have closed than it has room for", copies_});
}

void ModelledWorker::Publish(const msg::Commit& m) {
  ModelledExchange::Publication& sums = exchange_->Of(m);
  if (const OwnerShare* share = FindOwner(m.owners, self_)) MakeSums(sums, *share);
}

// The owner makes them, or its stand-in; the first of the two counts.
void ModelledWorker::MakeSums(const ModelledExchange::Publication& sums, const OwnerShare& share) {
  host_->After(
      exchange_->ReduceTime(sums, share.weight), [this, round = sums.round, attempt = sums.attempt,
                                                  owner = share.owner, weight = share.weight] {
        auto* done = exchange_->FindPublication(round, attempt);
        if (done == nullptr || done->missing == 0) return;
        msg::Published published{round, attempt};
        if (owner != self_) published.stands_in_for = owner.worker;
        host_->Send(published);
        if (done->published[owner.worker.value]) return;
        done->published[owner.worker.value] = true;
        const Time now = host_->now();
        done->last = std::max(done->last, now);
        done->sent =
            std::max(done->sent, now + exchange_->SendTime(*done, weight, host_->machine()));
        if (--done->missing > 0) return;
        for (const auto& [worker, id] : std::exchange(done->waiting, {})) {
          if (exchange_->Find(id) == worker) worker->OnPublished();
        }
      });
}

void ModelledWorker::OnPublished() {
  // The process may be stopped: then it looks when it runs again.
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
  Time taken = sums->sent;
  if (sums->algorithm == ExchangeAlgorithm::kDirect) {
    taken =
        std::max(taken, sums->last + exchange_->TakeTime(exchange_->options.sum_bytes(sums->parts),
                                                         host_->machine())) +
        latency;
  }
  host_->At(std::max(host_->now(), taken) + exchange_->UpdateTime(),
            [this, round = sums->round, attempt = sums->attempt] { OnApplied(round, attempt); });
}

void ModelledWorker::OnApplied(RoundId round, Attempt attempt) {
  applying_ = false;
  machine_->context.now = host_->now();
  const Committed* committed = FindCommitted(round);
  if (has_state_ && next_ == round && committed != nullptr && committed->attempt == attempt) {
    next_ = round.Next();
    host_->Send(
        msg::Applied{round, attempt, 0, round.value, host_->now().time_since_epoch().count()});
    TakePartInCheckpoint(*committed);
  }
  Settle();
}

// It sends the least that the coordinator accepts as a whole one.
void ModelledWorker::TakePartInCheckpoint(const Committed& committed) {
  if (!committed.checkpoint_writer) return;
  const std::vector<float> state(1);
  host_->Send(msg::ReplicaDigest{committed.round, committed.attempt, DigestOf(state)});
  if (committed.checkpoint_writer != self_) return;
  const auto bytes = std::as_bytes(std::span(state));
  host_->Send(msg::StateChunk{committed.round, 0, 0, true, {bytes.begin(), bytes.end()}});
}

void ModelledWorker::OnHedge(const msg::Hedge& m) {
  const auto* sums = exchange_->FindPublication(m.round, m.attempt);
  const Committed* committed = FindCommitted(m.round);
  if (m.by != self_ || sums == nullptr || committed == nullptr || committed->refused) return;
  const auto share = std::ranges::find(sums->owners, m.owner, &OwnerShare::owner);
  if (share != sums->owners.end()) MakeSums(*sums, *share);
}

void ModelledWorker::OnFenceAttempt(const msg::FenceAttempt& m) {
  const auto* sums = exchange_->FindPublication(m.round, m.attempt);
  const bool holds = has_state_ && (next_ > m.round ||
                                    (next_ == m.round && sums != nullptr && sums->missing == 0));
  if (Committed* committed = FindCommitted(m.round); committed != nullptr && !holds) {
    committed->refused = true;
  }
  host_->Send(msg::HoldAnswer{m.term, m.round, m.attempt, holds, m.order});
}

void ModelledWorker::OnTakeSums(const msg::TakeSums& m) {
  Remember(m.commit);
  auto& sums = exchange_->Of(m.commit);
  sums.missing = 0;
  sums.last = sums.sent = std::max(sums.last, host_->now());
}

// As a worker's Core does: what was planned for it in the open round has been given away, and it
// may get other units of that round.
void ModelledWorker::OnCatchUp(const msg::CatchUp& m) {
  has_state_ = false;
  machine_->own.StopAll();
  if (plan_ && plan_->round == m.open_round) TakeUnits(*plan_);
  const std::uint32_t order = copies_ = m.order;
  const Duration copy = 2 * exchange_->options.network.latency +
                        2 * exchange_->TakeTime(exchange_->options.model_bytes, host_->machine());
  for (std::uint64_t part = 1; part < kCopyParts; ++part) {
    host_->After(copy * part / kCopyParts, [this, order, part] {
      if (order == copies_) {
        host_->Send(
            msg::Copied{order, exchange_->options.model_bytes / sizeof(float) * part / kCopyParts});
      }
    });
  }
  host_->After(copy, [this, m] { TryToCopy(m); });
}

// The first donor that is still there has the last word.
void ModelledWorker::TryToCopy(const msg::CatchUp& m) {
  if (m.order != copies_) return;
  const ModelledWorker* from = exchange_->Find(m.donor);
  for (const MemberId& other : m.others) {
    if (from == nullptr || !from->next()) from = exchange_->Find(other);
  }
  const auto next = from == nullptr ? std::nullopt : from->next();
  // Parameters change only while no unit is computed.
  if (!next || *next < m.open_round || machine_->own.Busy()) {
    host_->After(std::chrono::milliseconds(5), [this, m] { TryToCopy(m); });
    return;
  }
  machine_->context.now = host_->now();
  has_state_ = true;
  next_ = *next;
  host_->Send(msg::Level{RoundId(next_.value - 1), m.order});
  Settle();
}

}  // namespace lockstep::simulate
