#include "coordinator/round/barrier.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/check.h"

namespace lockstep::coordinator {
namespace {

// Holders that live and are late are given more time so often, less one.
constexpr std::uint32_t kExtensions = 3;

}  // namespace

// Who has a shard to copy first takes as long as one who catches up may, but answers meanwhile, if
// not as soon. One that is wrongly held for stopped then costs more copies, and those are as slow.
Barrier::Barrier(const Job* job, const msg::Commit& commit, State state)
    : job_(job),
      from_(job->now),
      patience_(state.copies ? job->bounds.Publication() : job->bounds.Holding()) {
  for (const ShardHolders& shard : commit.owners.holders) {
    for (const MemberId& id : shard.members) holders_.push_back({id});
  }
  std::ranges::sort(holders_, {}, &Holder::id);
  const auto same = [](const Holder& a, const Holder& b) { return a.id == b.id; };
  holders_.erase(std::unique(holders_.begin(), holders_.end(), same), holders_.end());
  awaited_ = static_cast<std::uint32_t>(holders_.size());
  for (const CommittedPart& part : commit.parts) {
    const auto& needed = state.needed;
    if (!Holds(part.member) && std::ranges::find(needed, part.member) == needed.end()) {
      others_.push_back(part.member.worker);
    }
  }
  stuck_from_ = job->now + (state.copies ? job->bounds.Copy() : job->bounds.Stuck());
}

bool Barrier::Holds(const MemberId& member) const {
  return std::ranges::binary_search(holders_, member, {}, &Holder::id);
}

Result<bool> Barrier::OnHeld(const MemberId& from) {
  const auto holder = std::ranges::lower_bound(holders_, from, {}, &Holder::id);
  if (holder == holders_.end() || holder->id != from) return Violation("holds what it need not");
  if (holder->held) return false;
  holder->held = true;
  LOCKSTEP_CHECK(awaited_ > 0, "worker {} holds its shards and is not awaited", from.worker);
  if (--awaited_ > 0) return false;
  Begin(job_->bounds.Taking());
  return true;
}

void Barrier::Begin(Duration patience) {
  pinged_at_.reset();
  from_ = job_->now;
  patience_ = patience;
}

Duration Barrier::Longer() const {
  return std::min(patience_ * 2, std::max(job_->timeout, patience_));
}

// Also those who have said so: others may wait for what a silent one is to serve.
std::vector<WorkerId> Barrier::Ping() {
  pinged_at_ = job_->now;
  std::vector<WorkerId> all;
  for (const Holder& holder : holders_) all.push_back(holder.id.worker);
  all.insert(all.end(), others_.begin(), others_.end());
  return all;
}

// Whatever it says, no more than there is can be copied.
void Barrier::OnCopied(const MemberId& from, std::uint64_t values) {
  const auto holder = std::ranges::lower_bound(holders_, from, {}, &Holder::id);
  const std::uint64_t all = (1 + std::uint64_t{job_->state_tensors}) * job_->parameter_count;
  if (holder == holders_.end() || holder->id != from || holder->held || values <= holder->copied ||
      values > all) {
    return;
  }
  holder->copied = values;
  stuck_from_ = std::max(stuck_from_, job_->now + job_->bounds.Copy());
}

// At half of it those concerned are asked for a sign of life, so that whoever was asked has the
// other half to answer.
Time Barrier::Deadline() const {
  if (!pinged_at_) return from_ + patience_ / 2;
  return std::max(from_ + patience_, *pinged_at_ + patience_ / 2);
}

// Who is silent is blamed; who lives and is late gets more time, up to a bound, as its links may be
// slow, or what it copies large.
Barrier::Decision Barrier::OnDeadline() {
  LOCKSTEP_CHECK(!decided() && job_->now >= Deadline(), "holders are judged before the deadline");
  Decision decision;
  std::vector<WorkerId> awaited;
  for (const Holder& holder : holders_) {
    if (!holder.held) awaited.push_back(holder.id.worker);
  }
  if (!pinged_at_) {
    decision.ping = Ping();
    return decision;
  }
  for (const Holder& holder : holders_) {
    if (!job_->HeardSince(holder.id.worker, *pinged_at_)) {
      decision.blamed.push_back(holder.id.worker);
    }
  }
  if (!decision.blamed.empty()) return decision;
  for (const WorkerId worker : others_) {
    if (!job_->HeardSince(worker, *pinged_at_)) decision.silent.push_back(worker);
  }
  if (++extensions_ >= kExtensions && job_->now >= stuck_from_) {
    decision.blamed = std::move(awaited);
    return decision;
  }
  Begin(Longer());
  return decision;
}

Barrier::Decision Barrier::OnTakingDeadline() {
  LOCKSTEP_CHECK(decided() && job_->now >= Deadline(), "holders are judged before the deadline");
  Decision decision;
  if (!pinged_at_) {
    decision.ping = Ping();
    return decision;
  }
  for (Holder& holder : holders_) {
    if (holder.passed_over || job_->HeardSince(holder.id.worker, *pinged_at_)) continue;
    holder.passed_over = true;
    decision.blamed.push_back(holder.id.worker);
  }
  Begin(Longer());
  return decision;
}

std::string Barrier::Waiting() const {
  std::string text;
  for (const Holder& holder : holders_) {
    if (holder.held) continue;
    text += fmt::format("{}{}", text.empty() ? "waiting for the sums at worker " : ", ",
                        holder.id.worker);
  }
  return text;
}

}  // namespace lockstep::coordinator
