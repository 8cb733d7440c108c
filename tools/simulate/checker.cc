#include "tools/simulate/checker.h"

#include <algorithm>
#include <cmath>

#include "base/overloaded.h"
#include "tools/simulate/computed_run.h"

namespace lockstep::simulate {

using coordinator::MemberState;

// --- what workers say

void Checker::OnEvent(const coordinator::Event& event) {
  if (const auto* gone = std::get_if<coordinator::Disconnected>(&event)) {
    const auto member = members_.find(gone->connection);
    if (member != members_.end()) Out(member->second);
    return;
  }
  const auto* received = std::get_if<coordinator::Received>(&event);
  if (received == nullptr) return;
  const auto member = members_.find(received->connection);
  if (member == members_.end()) return;
  const MemberId& from = member->second;
  std::visit(Overloaded{
                 [&](const msg::Sealed& m) { OnSealed(from, m); },
                 [&](const msg::Receipts& m) { OnReceipts(from, m); },
                 [&](const msg::Revoked& m) { OnRevoked(from, m); },
                 [&](const msg::Reached& m) { OnReached(from, m); },
                 [&](const msg::Applied& m) { OnApplied(from, m); },
                 [&](const msg::Level& m) {
                   present_.insert(from);
                   next_[from] = m.round.Next();
                 },
                 [&](const msg::Leave&) { Out(from); },
                 [](const auto&) {},
             },
             received->message);
}

void Checker::OnSealed(const MemberId& from, const msg::Sealed& m) {
  // Of work that a later attempt has made void.
  if (m.round > planned_ || (m.round == planned_ && m.plan != plan_)) return;
  // The worker sent it before it knew of the commit that carried its work over.
  const bool carried = carries_ && m.round < planned_ && queues_.contains(from);
  sealed_[{from, carried ? planned_ : m.round, m.part}] = m;
}

void Checker::OnReceipts(const MemberId& from, const msg::Receipts& m) {
  for (const ReceivedPart& part : m.parts) {
    receipts_.insert({from, m.map_version, PartKey(part.member, m.round, part.part)});
  }
}

void Checker::OnRevoked(const MemberId& from, const msg::Revoked& m) {
  if (m.round != planned_) return;
  std::vector<UnitIndex>& queue = queues_[from];
  while (queue.size() > m.from) {
    // A worker that was put behind may answer when its units belong to others.
    const auto holder = holders_.find(queue.back());
    if (holder != holders_.end() && holder->second == from) holders_.erase(holder);
    queue.pop_back();
  }
}

void Checker::OnReached(const MemberId& from, const msg::Reached& m) {
  for (const PeerPath& path : m.peers) {
    if (path.reached && path.mapped) mapped_.insert({from, path.peer});
  }
}

void Checker::OnApplied(const MemberId& from, const msg::Applied& m) {
  const auto next = next_.find(from);
  if (next != next_.end()) next->second = std::max(next->second, m.round.Next());
}

void Checker::Release(const MemberId& member) {
  for (const UnitIndex unit : queues_[member]) {
    const auto holder = holders_.find(unit);
    if (holder != holders_.end() && holder->second == member) holders_.erase(holder);
  }
  queues_.erase(member);
}

void Checker::Out(const MemberId& member) {
  present_.erase(member);
  next_.erase(member);
  Release(member);
}

// --- what the coordinator says

void Checker::OnSend(const coordinator::Send& send) {
  const msg::ToWorker& message = *send.message;
  const auto receiver = members_.find(send.to.front());
  if (const auto* welcome = std::get_if<msg::Welcome>(&message)) {
    members_[send.to.front()] = welcome->self;
  } else if (const auto* start = std::get_if<msg::Start>(&message)) {
    if (start->source != StateSource::kPeers) {
      for (const auto connection : send.to) {
        present_.insert(members_[connection]);
        next_[members_[connection]] = start->plan.round;
      }
    }
    if (start->checkpoint_writer && epoch_) {
      standings_[RoundId(start->plan.round.value - 1)] = StandingNow(*epoch_);
    }
    const auto known = plans_.find(start->plan.round);
    if (!any_plan_ || start->plan.round > planned_) {
      OnPlan(start->plan);
    } else if (known != plans_.end() && known->second < start->plan.attempt) {
      OnPlanAnew(start->plan);
    }
  } else if (const auto* commit = std::get_if<msg::Commit>(&message)) {
    OnCommit(*commit);
  } else if (const auto* left = std::get_if<msg::MemberLeft>(&message)) {
    Out(left->member);
  } else if (receiver == members_.end()) {
    return;
  } else if (const auto* assign = std::get_if<msg::Assign>(&message)) {
    OnAssign(receiver->second, *assign);
  } else if (std::holds_alternative<msg::FenceRound>(message)) {
    Release(receiver->second);
  } else if (std::holds_alternative<msg::CatchUp>(message)) {
    Out(receiver->second);
    present_.insert(receiver->second);
  }
}

// A worker whose messages break the protocol is not honest, and all are.
void Checker::OnClose(const coordinator::Close& close) {
  if (!close.reason.starts_with("it broke the protocol")) return;
  const auto member = members_.find(close.connection);
  Fail("worker {} is put out: {}", member == members_.end() ? WorkerId(0) : member->second.worker,
       close.reason);
}

void Checker::AtReplacement(RoundId round, std::span<const coordinator::MemberStatus> members) {
  for (const coordinator::MemberStatus& member : members) {
    const auto next = next_.find(member.member);
    if (member.state != MemberState::kLive || next == next_.end() || next->second <= round)
      continue;
    Fail("round {} is opened again while worker {}, which is live, is before round {}", round,
         member.member.worker, next->second);
  }
}

// The round is computed again: no sealed part counts, and all units are unassigned.
void Checker::OnPlanAnew(const Plan& plan) {
  if (closed_ && *closed_ >= plan.round) {
    Fail("round {} is opened again after it was closed", plan.round);
  }
  rounds_[plan.round].local_rate = plan.local_rate;
  rounds_[plan.round].position = plan.position;
  if (committed_ && committed_->first == plan.round) {
    AtReplacement(plan.round, simulation_->coordinator().Status(simulation_->now()).members);
    units_ = rounds_[plan.round].units;
  }
  planned_ = plan.round;
  plans_[planned_] = plan_ = plan.attempt;
  holders_.clear();
  queues_.clear();
  std::erase_if(sealed_, [&](const auto& s) { return std::get<1>(s.first) >= plan.round; });
  if (!committed_ || committed_->first != plan.round) return;
  committed_ = plan.round.value == 0
                   ? std::nullopt
                   : std::optional(std::pair(RoundId(plan.round.value - 1), Attempt(0)));
}

void Checker::OnPlan(const Plan& plan) {
  any_plan_ = true;
  planned_ = plan.round;
  plans_[plan.round] = plan_ = plan.attempt;
  plans_.erase(plans_.begin(),
               plans_.lower_bound(RoundId(std::max<std::uint64_t>(plan.round.value, 1) - 1)));
  rounds_[plan.round].local_rate = plan.local_rate;
  rounds_[plan.round].position = plan.position;
  rounds_[plan.round].relaxed = plan.relaxed;
  carries_ = plan.carries;
  if (!plan.carries) {
    units_.clear();
    holders_.clear();
    queues_.clear();
    std::erase_if(sealed_, [&](const auto& s) { return std::get<1>(s.first) >= plan.round; });
  }
  for (const Assignment& assignment : plan.assignments) {
    for (const Unit& unit : assignment.units) {
      if (!units_.emplace(unit.index, unit).second) {
        Fail("round {}: unit {} is planned twice", plan.round, unit.index);
      }
      holders_[unit.index] = assignment.member;
      queues_[assignment.member].push_back(unit.index);
    }
  }
}

// Units in no part of the commit continue in the next round.
void Checker::Carry(const msg::Commit& m) {
  for (const CommittedPart& part : m.parts) {
    for (const UnitIndex unit : queues_[part.member]) {
      holders_.erase(unit);
      units_.erase(unit);
    }
    queues_.erase(part.member);
  }
  // The coordinator has put some behind, and has not told them yet.
  std::set<MemberId> live;
  for (const coordinator::MemberStatus& member :
       simulation_->coordinator().Status(simulation_->now()).members) {
    if (member.state == MemberState::kLive) live.insert(member.member);
  }
  std::erase_if(queues_, [&](const auto& queue) { return !live.contains(queue.first); });
  std::erase_if(holders_, [&](const auto& holder) { return !live.contains(holder.second); });
  std::set<UnitIndex> held;
  for (const auto& [member, queue] : queues_) held.insert(queue.begin(), queue.end());
  std::erase_if(units_, [&](const auto& unit) { return !held.contains(unit.first); });
  for (auto at = sealed_.begin(); at != sealed_.end();) {
    const auto [member, round, part] = at->first;
    if (round != m.round || !queues_.contains(member)) {
      ++at;
      continue;
    }
    auto node = sealed_.extract(at++);
    std::get<1>(node.key()) = m.round.Next();
    sealed_.insert(std::move(node));
  }
}

void Checker::OnAssign(const MemberId& to, const msg::Assign& m) {
  if (m.round != planned_) {
    Fail("units of round {} are assigned while round {} is planned", m.round, planned_);
  }
  for (const Unit& unit : m.units) {
    const auto holder = holders_.find(unit.index);
    if (holder != holders_.end()) doubts_.push_back({holder->second, unit.index});
    holders_[unit.index] = to;
    queues_[to].push_back(unit.index);
  }
}

void Checker::OnCommit(const msg::Commit& m) {
  const std::pair now(m.round, m.attempt);
  // The same round is committed again, for another writer of the checkpoint, or because it is the
  // last after all.
  if (committed_ == now) {
    if (m.parts != commit_->parts || m.owners != commit_->owners || m.update != commit_->update ||
        m.scale != commit_->scale || m.learning_rate != commit_->learning_rate ||
        m.fraction != commit_->fraction) {
      Fail("round {} attempt {} is sent again as another one", m.round, m.attempt);
    }
    commit_ = m;
    return;
  }
  if (closed_ && m.round <= *closed_) {
    Fail("round {} is committed again after it was closed", m.round);
  }
  if (committed_ && m.round != committed_->first && m.round != committed_->first.Next()) {
    Fail("round {} is committed after round {}", m.round, committed_->first);
  }
  if (committed_ && m.round == committed_->first) {
    AtReplacement(m.round, simulation_->coordinator().Status(simulation_->now()).members);
    if (m.attempt <= committed_->second) {
      Fail("round {}: attempt {} follows attempt {}", m.round, m.attempt, committed_->second);
    }
  }
  const std::uint32_t quorum = std::max(1u, options_.config.job.min_workers);
  if (present_.size() < quorum) {
    Fail("round {} is committed with {} members; {} are needed", m.round, present_.size(), quorum);
  }
  CheckParts(m);
  CheckScalars(m);
  CheckDelivered(m);
  if (m.round == planned_) rounds_[m.round].units = units_;
  committed_ = now;
  commit_ = m;
  carried_.clear();
  if (m.next && m.next->carries) {
    Carry(m);
    for (const auto& [index, unit] : units_) carried_.push_back(unit.range);
  }
  if (m.next) OnPlan(*m.next);
  const auto old = [&m](RoundId round) { return round.value + 4 < m.round.value; };
  std::erase_if(sealed_, [&](const auto& s) { return old(std::get<1>(s.first)); });
  std::erase_if(receipts_, [&](const auto& r) { return old(std::get<1>(std::get<2>(r))); });
  std::erase_if(rounds_, [&](const auto& r) { return old(r.first); });
}

void Checker::CheckParts(const msg::Commit& m) {
  if (m.parts.empty()) Fail("round {} is committed over nothing", m.round);
  IntervalSet ranges;
  std::uint64_t samples = 0;
  for (std::size_t i = 0; i < m.parts.size(); ++i) {
    const CommittedPart& part = m.parts[i];
    if (i > 0 && std::tie(part.member.worker, part.part) <=
                     std::tie(m.parts[i - 1].member.worker, m.parts[i - 1].part)) {
      Fail("round {}: the parts are not in the order of summation", m.round);
    }
    const auto sealed = sealed_.find({part.member, m.round, part.part});
    if (sealed == sealed_.end()) {
      Fail("round {}: part {} of worker {} was never sealed", m.round, part.part,
           part.member.worker);
      continue;
    }
    for (const UnitTiming& timing : sealed->second.units) {
      if (!ranges.Add(timing.unit.range)) {
        Fail("round {}: a sample of unit {} is in two parts", m.round, timing.unit.index);
      }
      const auto holder = holders_.find(timing.unit.index);
      if (m.attempt.value == 0 && m.round == planned_ &&
          (holder == holders_.end() || holder->second != part.member)) {
        Fail("round {}: worker {} has sealed unit {}, which it did not hold", m.round,
             part.member.worker, timing.unit.index);
      }
    }
    samples += part.samples;
  }
  std::uint64_t divisor = 0;
  for (const SampleRange& range : ranges.Ranges()) {
    divisor += options_.weighed ? DivisorOf(range) : range.size();
  }
  const double scale = divisor > 0 ? 1.0 / static_cast<double>(divisor) : 0;
  if (m.scale != static_cast<float>(scale)) {
    Fail("round {}: the scale is {}, of parts that count for {}", m.round, m.scale, divisor);
  }
  if (samples != m.samples || samples != ranges.positions()) {
    Fail("round {}: {} samples are said to be in parts of {}", m.round, m.samples, samples);
  }
}

void Checker::CheckScalars(const msg::Commit& m) {
  if (m.update != m.round.value + 1) Fail("round {} is called update {}", m.round, m.update);
  const JobConfig& config = options_.config;
  const double position = SchedulePosition(m.round);
  if (m.position != position || rounds_[m.round].position != position) {
    Fail("round {}: the schedule is at {}, and said to be at {} and {}", m.round, position,
         rounds_[m.round].position, m.position);
  }
  const double rate = Rate(position);
  const double of_steps = config.policy.local() ? rate : 0;
  if (const float told = rounds_[m.round].local_rate;
      std::abs(told - of_steps) > 1e-6 * of_steps + 1e-30) {
    Fail("round {}: the rate of the local steps is {}, not {}", m.round, told, of_steps);
  }
  if (config.policy.local()) {  // the steps are the workers' own, and are whole
    if (m.learning_rate != static_cast<float>(config.policy.local_rate) || m.fraction != 1 ||
        m.steps != m.update) {
      Fail("round {}: the average is taken at {} as {} of a step", m.round, m.learning_rate,
           m.fraction);
    }
    return;
  }
  const std::uint64_t before = epochs_ * options_.epoch_samples + counted_.positions();
  const auto batch = static_cast<double>(config.job.global_batch);
  if (std::abs(m.learning_rate - rate) > 1e-6 * rate + 1e-30) {
    Fail("round {}: the learning rate after {} rounds is {}, not {}", m.round, position, rate,
         m.learning_rate);
  }
  const bool linear = config.optimizer.linear_scaling;
  const auto fraction = linear ? static_cast<float>(static_cast<double>(m.samples) / batch) : 1.0f;
  const double steps = linear ? std::ceil(static_cast<double>(before + m.samples) / batch)
                              : static_cast<double>(m.update);
  if (m.fraction != fraction || static_cast<double>(m.steps) != steps) {
    Fail("round {}: {} samples after {} are said to be {} of a step, and of {} steps", m.round,
         m.samples, before, m.fraction, m.steps);
  }
}

// It counts a job's rounds, where they end it. Otherwise it counts whole rounds: those of each
// epoch before, and the counted samples of this one.
double Checker::SchedulePosition(RoundId round) const {
  const JobSection& job = options_.config.job;
  if (job.rounds > 0) return static_cast<double>(round.value);
  const double in_epoch = static_cast<double>(options_.epoch_samples) / job.global_batch;
  const std::uint64_t counted = counted_.positions();
  if (counted == options_.epoch_samples)
    return static_cast<double>(epochs_ + 1) * std::ceil(in_epoch);
  return static_cast<double>(epochs_) * std::ceil(in_epoch) +
         static_cast<double>(counted) / job.global_batch;
}

// It follows the words of docs/reference/configuration.md, not base/schedule.h: the two must agree.
double Checker::Rate(double position) const {
  const ScheduleSection& schedule = options_.config.schedule;
  const JobSection& job = options_.config.job;
  double rate = options_.config.optimizer.lr;
  const double in_epoch = std::ceil(static_cast<double>(options_.epoch_samples) / job.global_batch);
  const double length =
      job.rounds > 0 ? static_cast<double>(job.rounds) : in_epoch * std::max(job.epochs, 1u);
  if (schedule.name == "step") {
    for (double at = schedule.step_every; at <= position; at += schedule.step_every) {
      rate *= schedule.factor;
    }
  } else if (schedule.name == "exponential") {
    rate *= std::exp(std::log(schedule.factor) * position / schedule.step_every);
  } else if (schedule.name == "cosine" && position > schedule.warmup) {
    const double part = (position - schedule.warmup) / std::max(1.0, length - schedule.warmup);
    const double half = std::cos(std::min(part, 1.0) * std::acos(0.0));
    rate = schedule.final_lr + (rate - schedule.final_lr) * half * half;
  }
  return rate * std::min(1.0, (position + 1) / std::max(schedule.warmup, 1e-9));
}

void Checker::CheckDelivered(const msg::Commit& m) {
  // Later attempts concern only the pieces that their new owners still have to fetch.
  if (m.attempt.value > 0) return;
  if (!m.owners.direct()) return;  // nobody takes parts before the commit
  for (const CommittedPart& part : m.parts) {
    const PartKey key(part.member, m.round, part.part);
    for (const OwnerShare& share : m.owners.owners) {
      const MemberId& owner = share.owner;
      const bool in_place = owner == part.member || (mapped_.contains({owner, part.member}) &&
                                                     mapped_.contains({part.member, owner}));
      if (!in_place && !receipts_.contains({owner, m.owners.version, key})) {
        Fail("round {}: part {} of worker {} is committed, but owner {} has no receipt of it",
             m.round, part.part, part.member.worker, owner.worker);
      }
    }
  }
}

void Checker::OnClosed(const coordinator::RoundRecord& record) {
  if (closed_ && record.round != closed_->Next()) {
    Fail("round {} is closed after round {}", record.round, *closed_);
  }
  if (!committed_ || record.round > committed_->first) {
    Fail("round {} is closed before it is committed", record.round);
  }
  closed_ = record.round;
  closed_attempt_ = committed_ ? committed_->second : Attempt(0);
  if (commit_ && commit_->round == record.round) CheckRecord(record);
  samples_ += record.samples;
  for (const SampleRange& range : record.requeued) requeued_ += range.size();
  if (epoch_ && record.epoch != *epoch_) {
    if (counted_.positions() != options_.epoch_samples) {
      Fail("epoch {} ends with {} of {} samples counted", *epoch_, counted_.positions(),
           options_.epoch_samples);
    }
    if (record.epoch != epoch_->Next()) Fail("epoch {} follows epoch {}", record.epoch, *epoch_);
    counted_ = {};
    ++epochs_;
  }
  epoch_ = record.epoch;
  for (const coordinator::ContributorRecord& contributor : record.contributors) {
    for (const SampleRange& range : contributor.ranges) {
      if (!counted_.Add(range)) {
        Fail("epoch {}: [{}, {}) counts twice, the second time in round {}", record.epoch,
             range.from, range.to, record.round);
      }
    }
  }
  // They are not served again.
  for (const coordinator::SkippedRecord& skipped : record.skipped) {
    for (const SampleRange& range : skipped.ranges) {
      if (counted_.Add(range)) continue;
      Fail("epoch {}: [{}, {}) is skipped in round {} and counts", record.epoch, range.from,
           range.to, record.round);
    }
  }
  if (!commit_ || !commit_->checkpoint_writer) return;
  standings_[record.round] = StandingNow(record.epoch);
}

// After the last closed round, which was of this epoch.
Checker::Standing Checker::StandingNow(Epoch epoch) const {
  Standing standing = {{options_.epoch_samples, epoch, {}}, samples_, requeued_};
  if (counted_.positions() == options_.epoch_samples) {
    standing.sampler.epoch = epoch.Next();
    standing.sampler.uncounted = {{0, options_.epoch_samples}};
    return standing;
  }
  std::uint64_t from = 0;
  for (const SampleRange& range : counted_.Ranges()) {
    if (range.from > from) standing.sampler.uncounted.push_back({from, range.from});
    from = range.to;
  }
  if (from < options_.epoch_samples) {
    standing.sampler.uncounted.push_back({from, options_.epoch_samples});
  }
  return standing;
}

// It is compared with the last commit of that round.
void Checker::CheckRecord(const coordinator::RoundRecord& record) {
  if (record.epoch != commit_->epoch || record.samples != commit_->samples ||
      record.update != commit_->update || record.contributors.size() != commit_->parts.size() ||
      record.learning_rate != commit_->learning_rate * commit_->fraction) {
    Fail("round {}: its record is of another commit", record.round);
  }
  // Each sample of the round was counted, continues, or was left out; none is in two of these.
  IntervalSet told;
  const auto tell = [&](const std::vector<SampleRange>& ranges, const char* what) {
    for (const SampleRange& range : ranges) {
      if (!told.Add(range)) {
        Fail("round {}: [{}, {}) is {}, and something else too", record.round, range.from, range.to,
             what);
      }
    }
  };
  for (const coordinator::ContributorRecord& contributor : record.contributors) {
    tell(contributor.ranges, "counted");
  }
  tell(carried_, "carried on");
  tell(record.requeued, "requeued");
  tell(record.dropped, "dropped");
  IntervalSet all;
  for (const auto& [index, unit] : rounds_[record.round].units) {
    if (unit.range.size() > 0 && !all.Add(unit.range)) {
      Fail("round {}: a sample of unit {} is in another one", record.round, index);
    }
  }
  if (told != all) {
    Fail("round {}: of {} samples its record counts, carries on, requeues or drops {}",
         record.round, all.positions(), told.positions());
  }
  IntervalSet skipped;
  for (const coordinator::SkippedRecord& of_worker : record.skipped) {
    for (const SampleRange& range : of_worker.ranges) skipped.Merge(range);
  }
  IntervalSet dropped;
  for (const SampleRange& range : record.dropped) dropped.Merge(range);
  if (commit_->next && dropped != skipped) {
    Fail("round {} drops samples, though a round follows", record.round);
  }
}

void Checker::AfterStep() {
  simulation_->coordinator().CheckInvariants();
  if (doubts_.empty()) return;
  const auto status = simulation_->coordinator().Status(simulation_->now());
  for (const Doubt& doubt : doubts_) {
    for (const coordinator::MemberStatus& member : status.members) {
      if (member.member == doubt.member && member.state == MemberState::kLive) {
        Fail("round {}: unit {} is given away while worker {} has it", planned_, doubt.unit,
             doubt.member.worker);
      }
    }
  }
  doubts_.clear();
}

void Checker::OnCheckpoint(const coordinator::JobState& state) {
  const auto standing = standings_.find(RoundId(state.next_round.value - 1));
  if (standing == standings_.end()) {
    Fail("a checkpoint before round {}, which was not asked for or is not closed",
         state.next_round);
    return;
  }
  const Standing& s = standing->second;
  if (state.updates != state.next_round.value || state.sampler != s.sampler ||
      state.totals.samples_counted != s.samples || state.totals.samples_requeued != s.requeued ||
      state.totals.rounds != state.next_round.value) {
    Fail(
        "the checkpoint before round {} says {} samples of {} rounds counted in {} updates, with "
        "{} ranges of epoch {} left. The truth is {} samples, with {} ranges of epoch {} left",
        state.next_round, state.totals.samples_counted, state.totals.rounds, state.updates,
        state.sampler.uncounted.size(), state.sampler.epoch, s.samples, s.sampler.uncounted.size(),
        s.sampler.epoch);
  }
}

void Checker::OnCoordinatorGone() {
  members_.clear();
  mapped_.clear();
}

void Checker::OnResumed(const coordinator::JobState& state) {
  Checker anew(options_, simulation_);
  anew.failure_ = std::move(failure_);
  anew.members_ = std::move(members_);
  anew.mapped_ = std::move(mapped_);
  if (state.next_round.value > 0) {
    anew.closed_ = RoundId(state.next_round.value - 1);
    anew.committed_ = std::pair(*anew.closed_, Attempt(0));
  }
  anew.epoch_ = state.sampler.epoch;
  anew.epochs_ = state.sampler.epoch.value;
  std::uint64_t at = 0;
  for (const SampleRange& left : state.sampler.uncounted) {
    if (!anew.counted_.Add({at, left.from})) anew.Fail("a checkpoint's ranges are out of order");
    at = left.to;
  }
  if (!anew.counted_.Add({at, options_.epoch_samples})) anew.Fail("a checkpoint's ranges overlap");
  anew.samples_ = state.totals.samples_counted;
  anew.requeued_ = state.totals.samples_requeued;
  *this = std::move(anew);
}

void Checker::AtLoss(const std::string& reason, const MemberId& member,
                     const worker::StepMachine::View& view) {
  const bool has_closed = view.next == first_open();
  const bool has_committed =
      committed_ && committed_->first == first_open() && view.next == first_open().Next();
  if (!view.level || (!has_closed && !has_committed)) return;
  const Attempt truth = has_closed ? closed_attempt_ : committed_->second;
  if (view.newest && *view.newest != truth) return;
  Fail("the job has failed ({}) though worker {}.{}, which was never stopped, is level before {}",
       reason, member.worker, member.incarnation, view.next);
}

void Checker::AtEnd(const coordinator::JobResult& result) {
  const std::uint64_t all = options_.config.job.epochs;
  const bool in_last = epochs_ + 1 == all && counted_.positions() == options_.epoch_samples;
  // A coordinator that took over behind the last commit.
  const bool behind_last = epochs_ == all && counted_.positions() == 0;
  if (!in_last && !behind_last) {
    Fail("the job has ended with {} samples of its last epoch counted, and {} epochs before it",
         counted_.positions(), epochs_);
  }
  const coordinator::Totals& totals = result.totals;
  if (totals.samples_counted != samples_ || totals.samples_requeued != requeued_ ||
      totals.rounds != first_open().value) {
    Fail(
        "the job says that {} samples in {} rounds have counted and {} were requeued; its records "
        "say {}, {} and {}",
        totals.samples_counted, totals.rounds, totals.samples_requeued, samples_,
        first_open().value, requeued_);
  }
}

}  // namespace lockstep::simulate
