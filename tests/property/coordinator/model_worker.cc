#include "tests/property/coordinator/model_worker.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/check.h"

namespace lockstep::coordinator {
namespace {

constexpr std::uint64_t kParameters = 1000;

bool Contains(const std::vector<MemberId>& members, const MemberId& id) {
  return std::find(members.begin(), members.end(), id) != members.end();
}

std::set<MemberId> OwnersOf(const OwnerMap& map) {
  std::set<MemberId> owners;
  for (const OwnerShare& share : map.owners) owners.insert(share.owner);
  return owners;
}

}  // namespace

void ModelWorker::OnStart() {
  Hello hello;
  hello.version = "model";
  hello.host = "host";
  hello.pid = host_->machine();
  hello.device = "cpu";
  hello.wanted = host_->wanted();
  host_->Send(hello);
}

void ModelWorker::OnMessage(const ToWorker& message) {
  std::visit([this](const auto& m) { On(m); }, message);
}

void ModelWorker::On(const Welcome& m) {
  self_ = m.self;
  term_ = m.term;
  host_->SetSelf(self_);
  const ModelOptions& options = world_->options;
  Ready ready;
  if (options.ucx) ready.transports.push_back({"ucx", "address", ""});
  ready.transports.push_back({"tcp", "address", ""});
  ready.dataset_digest = "d1";
  ready.train_samples = options.train_samples;
  ready.test_samples = options.test_samples;
  ready.parameter_count = kParameters;
  ready.state_tensors = 1;
  host_->After(std::chrono::milliseconds(1), [this, ready] { host_->Send(ready); });
}

void ModelWorker::On(const Form& m) {
  Reached reached;
  reached.formation = m.formation;
  for (const auto* list : {&m.connect_to, &m.expect}) {
    for (const PeerInfo& peer : *list) {
      peers_.insert(peer.member);
      reached.peers.push_back({peer.member, true, "", world_->options.mapped, m.transport, 1.0});
    }
  }
  host_->After(std::chrono::milliseconds(1), [this, reached] { host_->Send(reached); });
}

void ModelWorker::On(const Start& m) {
  if (m.source != StateSource::kPeers) {
    has_state_ = true;
    next_ = m.plan.round;
    state_ = 17 + m.plan.round.value;
  }
  const RoundId round = m.plan.round;
  if (!plan_ || plan_->round != round || plan_->attempt != m.plan.attempt) {
    // Perhaps the round is open again: what was computed for another plan of it counts no more.
    const auto commit = commits_.find(round);
    if (commit != commits_.end() && refused_.contains({round, commit->second.attempt})) {
      commits_.erase(commit);
    }
    const auto of_round = [round](const PartKey& part) { return std::get<1>(part) == round; };
    std::erase_if(ready_, of_round);
    std::erase_if(received_, of_round);
    std::erase_if(world_->received[self_], of_round);
  }
  TakePlan(m.plan);
}

void ModelWorker::TakePlan(const Plan& plan) {
  plan_ = plan;
  owners_ = plan.owners;
  computing_ = false;
  ++work_;
  queue_.clear();
  head_ = 0;
  parts_used_ = 0;
  part_units_.clear();
  for (const Assignment& assignment : plan.assignments) {
    if (assignment.member == self_) queue_ = assignment.units;
  }
  BeginRound();
}

void ModelWorker::BeginRound() {
  if (!plan_ || !has_state_ || next_ != plan_->round || computing_) return;
  computing_ = true;
  for (const PartKey& part : ready_) OnPartReady(part);
  TakeUnit();
}

void ModelWorker::TakeUnit() {
  if (!computing_ || busy_) return;
  if (head_ == queue_.size()) {
    if (!part_units_.empty()) Seal();
    return;
  }
  busy_ = true;
  const Unit unit = queue_[head_++];
  const bool slow = world_->options.slow.contains(host_->machine());
  auto time = world_->options.unit_time / 2 +
              Duration(host_->random().NextBelow(
                  static_cast<std::uint64_t>(world_->options.unit_time.count())));
  if (slow)
    time = Duration(
        static_cast<std::int64_t>(static_cast<double>(time.count()) * world_->options.slow_factor));
  const std::int64_t start = host_->now().time_since_epoch().count();
  host_->After(time, [this, unit, start, work = work_] {
    busy_ = false;
    if (work == work_ && computing_) {
      part_units_.push_back({unit, start, host_->now().time_since_epoch().count()});
      const auto taken = static_cast<std::uint32_t>(head_);
      host_->Send(Progress{plan_->round, taken, taken, plan_->attempt});
    }
    TakeUnit();
  });
}

void ModelWorker::Seal() {
  Sealed sealed;
  sealed.round = plan_->round;
  sealed.plan = plan_->attempt;
  sealed.part = PartIndex(static_cast<std::uint8_t>(parts_used_++));
  for (const UnitTiming& timing : part_units_) sealed.samples += timing.unit.range.size();
  sealed.loss_sum = static_cast<double>(sealed.samples);
  sealed.units = std::move(part_units_);
  part_units_.clear();
  sealed.sealed_ns = host_->now().time_since_epoch().count();
  const PartKey key{self_, sealed.round, sealed.part};
  host_->Send(sealed);
  received_.insert(key);
  Announce(key);
  OnPartReady(key);
}

void ModelWorker::Announce(const PartKey& part) {
  for (const MemberId& peer : peers_) {
    host_->AtPeer(peer, [part](WorkerModel& p) { static_cast<ModelWorker&>(p).OnPartReady(part); });
  }
}

bool ModelWorker::IsOwner(const OwnerMap& map) const { return OwnersOf(map).contains(self_); }

void ModelWorker::OnPartReady(const PartKey& part) {
  ready_.insert(part);
  const RoundId round = std::get<1>(part);
  const auto commit = commits_.find(round);
  const bool open = plan_ && plan_->round == round && IsOwner(owners_);
  const bool late = commit != commits_.end() && IsOwner(commit->second.owners);
  if (open || late) FetchPart(part);
}

void ModelWorker::FetchPart(const PartKey& part) {
  if (received_.contains(part)) return OnPart(part);
  const MemberId from = std::get<0>(part);
  host_->AtPeer(from, [part, to = self_](WorkerModel& p) {
    auto& peer = static_cast<ModelWorker&>(p);
    if (!peer.received_.contains(part)) return;
    peer.host_->AtPeer(to, [part](WorkerModel& w) { static_cast<ModelWorker&>(w).OnPart(part); });
  });
}

void ModelWorker::OnPart(const PartKey& part) {
  received_.insert(part);
  world_->received[self_].insert(part);
  if (plan_ && plan_->round == std::get<1>(part)) SendReceipt(part);
  Reduce();
}

void ModelWorker::SendReceipt(const PartKey& part) {
  if (std::get<0>(part) == self_ || world_->options.mapped || !IsOwner(owners_)) return;
  host_->Send(Receipts{plan_->round, owners_.version, {{std::get<0>(part), std::get<2>(part)}}});
}

void ModelWorker::On(const MemberLeft& m) {
  peers_.erase(m.member);
  CheckSources();
}

// The sums of a closed round may be gone with who had them; of the last one the coordinator cares.
void ModelWorker::CheckSources() {
  if (!has_state_ || !commits_.contains(next_) || !commits_.contains(next_.Next())) return;
  const Commit& commit = commits_[next_];
  const SumKey key{commit.round, commit.attempt};
  for (const MemberId& owner : OwnersOf(commit.owners)) {
    const auto taken = sources_.find(key);
    const MemberId source = taken == sources_.end() ? owner : taken->second;
    if (sums_[key].contains(owner) || source == self_ || peers_.contains(source)) continue;
    has_state_ = false;
    host_->Send(
        Behind{RoundId(next_.value - 1), next_.value > 0, "who had the sums is gone", copy_order_});
    return;
  }
}

void ModelWorker::On(const NewOwners& m) {
  if (!plan_ || plan_->round != m.round) return;
  owners_ = m.owners;
  // A new owner may have come after the parts were announced.
  for (const PartKey& part : std::set<PartKey>(ready_)) {
    if (std::get<0>(part) == self_ && std::get<1>(part) == m.round) Announce(part);
    OnPartReady(part);
  }
}

void ModelWorker::On(const Commit& m) {
  const auto before = commits_.find(m.round);
  const bool again = before != commits_.end() && before->second.attempt == m.attempt;
  commits_[m.round] = m;
  // Who is further behind than that does not say so: the coordinator has to find out by itself.
  while (commits_.size() > 4) commits_.erase(commits_.begin());
  std::erase_if(sums_, [&](const auto& s) { return s.first.first.value + 2 < m.round.value; });
  std::erase_if(received_, [&](const auto& p) { return std::get<1>(p).value + 2 < m.round.value; });
  std::erase_if(ready_, [&](const auto& p) { return std::get<1>(p).value + 2 < m.round.value; });
  if (!again || !m.next) {
    if (m.next) {
      TakePlan(*m.next);
    } else {
      plan_.reset();
      computing_ = false;
      ++work_;
    }
  }
  if (IsOwner(m.owners)) {
    for (const CommittedPart& part : m.parts) FetchPart({part.member, m.round, part.part});
  }
  Reduce();
  Apply();
  CheckSources();
  if (again && has_state_ && next_ == m.round.Next()) Stream(m);
}

void ModelWorker::Reduce() {
  for (const auto& [round, commit] : commits_) {
    const SumKey key{round, commit.attempt};
    if (!IsOwner(commit.owners) || published_.contains(key)) continue;
    bool all = true;
    for (const CommittedPart& part : commit.parts) {
      all = all && received_.contains({part.member, round, part.part});
    }
    if (!all) continue;
    published_.insert(key);
    host_->Send(Published{round, commit.attempt});
    sums_[key].insert(self_);
    for (const MemberId& member : commit.members) {
      if (member == self_) continue;
      host_->AtPeer(member, [key, owner = self_](WorkerModel& p) {
        static_cast<ModelWorker&>(p).FetchSum(owner, key, {owner});
      });
    }
    OnSum(key, {self_});
    return;  // OnSum may have changed the commits
  }
}

void ModelWorker::FetchSum(const MemberId& from, const SumKey& key, std::set<MemberId> shards) {
  if (next_ > key.first && has_state_) return;
  host_->AtPeer(from, [key, shards, to = self_](WorkerModel& p) {
    auto& peer = static_cast<ModelWorker&>(p);
    const auto held = peer.sums_.find(key);
    const bool have =
        held != peer.sums_.end() &&
        std::includes(held->second.begin(), held->second.end(), shards.begin(), shards.end());
    peer.host_->AtPeer(to, [key, shards, have](WorkerModel& w) {
      auto& self = static_cast<ModelWorker&>(w);
      if (have) return self.OnSum(key, shards);
      if (self.has_state_ && self.next_ == key.first) {
        self.has_state_ = false;
        self.host_->Send(Behind{RoundId(self.next_.value - 1), self.next_.value > 0,
                                "sums are gone", self.copy_order_});
      }
    });
  });
}

bool ModelWorker::Holds(const SumKey& key) const {
  const auto commit = commits_.find(key.first);
  const auto sums = sums_.find(key);
  return commit != commits_.end() && commit->second.attempt == key.second && sums != sums_.end() &&
         sums->second == OwnersOf(commit->second.owners);
}

void ModelWorker::OnSum(const SumKey& key, const std::set<MemberId>& shards) {
  sums_[key].insert(shards.begin(), shards.end());
  Apply();
}

void ModelWorker::Apply() {
  if (!has_state_) return;
  const auto found = commits_.find(next_);
  if (found == commits_.end()) return;
  const Commit& commit = found->second;
  const SumKey key{commit.round, commit.attempt};
  if (!Contains(commit.members, self_) || refused_.contains(key) || !Holds(key)) return;
  state_ = Mix64(state_ ^ Mix64(commit.round.value * 31 + commit.attempt.value));
  for (const CommittedPart& part : commit.parts) {
    state_ =
        Mix64(state_ ^ (part.member.worker.value * 1000 + part.part.value) ^ part.samples << 32);
  }
  next_ = next_.Next();
  if (commit.evaluation != 0) snapshots_ = {{commit.evaluation, commit.round}};
  host_->Send(
      Applied{commit.round, commit.attempt, 0, state_, host_->now().time_since_epoch().count()});
  Stream(commit);
  BeginRound();
  Apply();
}

void ModelWorker::On(const Revoke& m) {
  if (!plan_ || plan_->round != m.round) return;
  const std::size_t from = std::min(queue_.size(), std::max<std::size_t>(m.from, head_));
  queue_.resize(from);
  host_->Send(Revoked{m.round, static_cast<std::uint32_t>(from), m.order, false});
  TakeUnit();
}

void ModelWorker::On(const Assign& m) {
  if (!plan_ || plan_->round != m.round) return;
  if (parts_used_ == kMaxParts) {
    host_->Send(Revoked{m.round, static_cast<std::uint32_t>(queue_.size()), m.order, false});
    ++world_->refused;
    return;
  }
  world_->assigned++;
  queue_.insert(queue_.end(), m.units.begin(), m.units.end());
  TakeUnit();
}

void ModelWorker::On(const FenceRound& m) {
  if (!plan_ || plan_->round != m.round) return;
  queue_.clear();
  part_units_.clear();
  head_ = 0;
  ++work_;
  host_->Send(Revoked{m.round, 0, m.order, true});
}

void ModelWorker::On(const FenceAttempt& m) {
  const SumKey key{m.round, m.attempt};
  const bool holds = Holds(key) || (has_state_ && next_ > m.round);
  if (!holds) refused_.insert(key);
  host_->Send(HoldAnswer{m.term, m.round, m.attempt, holds, m.order});
}

void ModelWorker::On(const TakeSums& m) {
  const SumKey key{m.commit.round, m.commit.attempt};
  refused_.erase(key);
  commits_[m.commit.round] = m.commit;
  if (Holds(key)) return Apply();
  sources_[key] = m.holder;
  FetchSum(m.holder, key, OwnersOf(m.commit.owners));
}

void ModelWorker::On(const CatchUp& m) {
  has_state_ = false;
  computing_ = false;
  ++work_;
  copy_order_ = m.order;
  Copy(m.donor, m.open_round, m.order);
}

void ModelWorker::Copy(MemberId donor, RoundId open, std::uint32_t order) {
  host_->AtPeer(donor, [open, to = self_, donor, order](WorkerModel& p) {
    auto& peer = static_cast<ModelWorker&>(p);
    const bool have = peer.has_state_ && peer.next_ >= open;
    peer.host_->AtPeer(to, [=, state = peer.state_, next = peer.next_](WorkerModel& w) {
      auto& self = static_cast<ModelWorker&>(w);
      if (self.has_state_ || order != self.copy_order_) return;
      if (!have) {
        self.host_->After(std::chrono::milliseconds(5), [&self, donor, open, order] {
          if (!self.has_state_ && order == self.copy_order_) self.Copy(donor, open, order);
        });
        return;
      }
      self.state_ = state;
      self.next_ = next;
      self.has_state_ = true;
      self.host_->Send(Level{RoundId(next.value - 1), order});
      self.BeginRound();
      self.Apply();
    });
  });
}

void ModelWorker::On(const Evaluate& m) {
  LOCKSTEP_CHECK(snapshots_.contains(m.evaluation) && snapshots_[m.evaluation] == m.round,
                 "asked to evaluate what it has no snapshot of");
  host_->After(std::chrono::milliseconds(1), [this, m] {
    host_->Send(EvaluationResult{m.evaluation, m.range, 1.0 * static_cast<double>(m.range.size()),
                                 m.range.size() / 2});
  });
}

// Stands for the parameters: its bits are in all of them.
std::vector<float> ModelWorker::Tensor() const {
  return std::vector<float>(kParameters, static_cast<float>(state_ % 1000));
}

void ModelWorker::Stream(const Commit& commit) {
  if (!commit.checkpoint_writer) return;
  const std::vector<float> tensor = Tensor();
  DigestStream digest;
  for (std::uint32_t t = 0; t < 2; ++t) digest.Update(std::as_bytes(std::span(tensor)));
  const RoundId round = commit.round;
  host_->Send(ReplicaDigest{round, commit.attempt, digest.Digest()});
  if (commit.checkpoint_writer != self_ || !streamed_.insert(round).second) return;
  for (std::uint32_t t = 0; t < 2; ++t) {
    for (std::uint64_t offset = 0; offset < 4 * kParameters; offset += 1600) {
      const std::uint64_t bytes = std::min<std::uint64_t>(1600, 4 * kParameters - offset);
      const bool last = t == 1 && offset + bytes == 4 * kParameters;
      const auto piece = std::as_bytes(std::span(tensor)).subspan(offset, bytes);
      host_->Send(StateChunk{round, t, offset, last, {piece.begin(), piece.end()}});
    }
  }
}

std::string ModelWorker::Digest() const { return fmt::format("{:016x}", state_); }

void ModelWorker::On(const Finish& m) {
  if (m.failed || !has_state_) return;
  host_->Send(Final{RoundId(next_.value - 1), Digest()});
}

void ModelWorker::On(const Ping& m) {
  host_->Send(Pong{m.sequence, m.sent_ns, host_->now().time_since_epoch().count()});
}

}  // namespace lockstep::coordinator
