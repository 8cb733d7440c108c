#include "coordinator/round/barrier.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "base/check.h"
#include "base/sometimes.h"

namespace lockstep::coordinator {
namespace {

// Holders that live and are late are given more time so often, less one.
constexpr std::uint32_t kExtensions = 3;

}  // namespace

// A replica that has to copy a shard first may take as long as a member that catches up, but it
// answers pings meanwhile, if not as soon. A wrong verdict then costs more copies, and those are as
// slow.
Barrier::Barrier(const Job* job, const msg::Commit& commit, bool copies)
    : job_(job),
      from_(job->now()),
      patience_(copies ? job->bounds.Publication() : job->bounds.Holding()) {
  for (const ShardHolders& shard : commit.owners.holders) {
    for (const MemberId& id : shard.members) replicas_.push_back({id});
  }
  std::ranges::sort(replicas_, {}, &Replica::id);
  const auto same = [](const Replica& a, const Replica& b) { return a.id == b.id; };
  replicas_.erase(std::unique(replicas_.begin(), replicas_.end(), same), replicas_.end());
  awaited_ = static_cast<std::uint32_t>(replicas_.size());
  for (const MemberId& id : commit.members) members_.push_back(id.worker);
  stuck_from_ = job->now() + (copies ? job->bounds.Copy() : job->bounds.Stuck());
}

bool Barrier::Holds(const MemberId& member) const {
  return std::ranges::binary_search(replicas_, member, {}, &Replica::id);
}

Result<bool> Barrier::OnHeld(const MemberId& from) {
  const auto replica = std::ranges::lower_bound(replicas_, from, {}, &Replica::id);
  if (replica == replicas_.end() || replica->id != from) return Violation("holds what it need not");
  if (replica->held) return false;
  replica->held = true;
  LOCKSTEP_CHECK(awaited_ > 0, "worker {} holds its shards and is not awaited", from.worker);
  if (--awaited_ > 0) return false;
  Begin(job_->bounds.ParameterFetch());
  return true;
}

void Barrier::Begin(Duration patience) {
  pinged_at_.reset();
  from_ = job_->now();
  patience_ = patience;
}

Duration Barrier::Longer() const {
  return std::min(patience_ * 2, std::max(job_->timeout, patience_));
}

// Members that hold their shards, or hold none, are pinged too. Others may wait for them: for the
// state that they had, for their parts, or for the new parameters.
Barrier::Decision Barrier::Ping() {
  pinged_at_ = job_->now();
  Decision decision;
  decision.ping = members_;
  return decision;
}

std::vector<WorkerId> Barrier::Silent() const {
  std::vector<WorkerId> silent;
  std::ranges::copy_if(members_, std::back_inserter(silent),
                       [this](WorkerId worker) { return !job_->HeardSince(worker, *pinged_at_); });
  return silent;
}

// It cannot copy more than there is, so a larger number is ignored.
void Barrier::OnCopied(const MemberId& from, std::uint64_t values) {
  const auto replica = std::ranges::lower_bound(replicas_, from, {}, &Replica::id);
  const std::uint64_t all =
      (1 + std::uint64_t{job_->agreed().state_tensors}) * job_->agreed().parameter_count;
  if (replica == replicas_.end() || replica->id != from || replica->held ||
      values <= replica->copied || values > all) {
    return;
  }
  replica->copied = values;
  stuck_from_ = std::max(stuck_from_, job_->now() + job_->bounds.Copy());
}

// At half of it those concerned are asked for a sign of life, so that whoever was asked has the
// other half to answer.
Time Barrier::Deadline() const {
  if (!pinged_at_) return from_ + patience_ / 2;
  return std::max(from_ + patience_, *pinged_at_ + patience_ / 2);
}

// A silent replica is blamed. One that is alive and late gets more time, up to a bound: its links
// may be slow, or its copy large.
Barrier::Decision Barrier::OnDeadline() {
  LOCKSTEP_CHECK(!decided() && job_->now() >= Deadline(), "holders are judged before the deadline");
  if (!pinged_at_) return Ping();
  Decision decision;
  decision.silent = Silent();
  for (const Replica& replica : replicas_) {
    if (std::ranges::find(decision.silent, replica.id.worker) != decision.silent.end()) {
      decision.blamed.push_back(replica.id.worker);
    }
  }
  if (!decision.blamed.empty()) {
    Sometimes<"replicas: a silent holder is blamed">();
    return decision;
  }
  if (++extensions_ >= kExtensions && job_->now() >= stuck_from_) {
    Sometimes<"replicas: a late holder is blamed">();
    for (const Replica& replica : replicas_) {
      if (!replica.held) decision.blamed.push_back(replica.id.worker);
    }
    return decision;
  }
  Sometimes<"replicas: a late holder gets more time">();
  Begin(Longer());
  return decision;
}

Barrier::Decision Barrier::OnFetchDeadline() {
  LOCKSTEP_CHECK(decided() && job_->now() >= Deadline(), "holders are judged before the deadline");
  if (!pinged_at_) return Ping();
  Decision decision;
  decision.silent = Silent();
  Sometimes<"replicas: new parameters are late">();
  Begin(Longer());
  return decision;
}

std::string Barrier::Waiting() const {
  std::string text;
  for (const Replica& replica : replicas_) {
    if (replica.held) continue;
    text += fmt::format("{}{}", text.empty() ? "waiting for the sums at worker " : ", ",
                        replica.id.worker);
  }
  return text;
}

}  // namespace lockstep::coordinator
