#include "coordinator/round/receipt_watch.h"

#include <algorithm>
#include <cstdint>

#include "base/check.h"

namespace lockstep::coordinator {

void ReceiptWatch::Reset() {
  from_ = job_->now();
  patience_ = job_->bounds.Receipts();
  pinged_at_.reset();
}

Time ReceiptWatch::Next(const RoundWork& work) const {
  if (work.undelivered() == 0 || !work.last_sealed()) return kNever;
  const Time begin = std::max(*work.last_sealed(), from_);
  if (!pinged_at_) return begin + patience_ / 2;
  return std::max(begin + patience_, *pinged_at_ + patience_ / 2);
}

ReceiptWatch::Decision ReceiptWatch::Look(const RoundWork& work) {
  Decision decision;
  if (Next(work) > job_->now()) return decision;
  if (!pinged_at_) {
    pinged_at_ = job_->now();
    for (const OwnerShare& share : work.owners().owners) {
      decision.ping.push_back(share.owner.worker);
    }
    if (Next(work) > job_->now()) return decision;
  }
  const Time pinged_at = *pinged_at_;
  pinged_at_.reset();
  from_ = job_->now();
  if (!OnlyReceiptsLack(work)) return decision;
  decision.blamed = Blame(work, pinged_at);
  if (decision.blamed.empty() || decision.blamed.size() == work.owners().owners.size()) {
    // It is slow for everybody.
    decision.blamed.clear();
    patience_ = std::min(patience_ * 2, std::max(job_->timeout, job_->bounds.Receipts()));
  }
  return decision;
}

// Otherwise nobody is to blame for them yet. The policy is asked as if all were there; what it says
// then is thrown away.
bool ReceiptWatch::OnlyReceiptsLack(const RoundWork& work) const {
  if (!work.unassigned().empty()) return false;
  const Hypothetical delivered(work.View(job_->now(), job_->CountedOn()), work.shares());
  return job_->policy().closing->Judge(delivered.view).close;
}

// A receipt takes two: it is the owner's fault when it is silent, or when it misses most of what
// others have; not when the contributor is the silent one.
std::vector<WorkerId> ReceiptWatch::Blame(const RoundWork& work, Time pinged_at) const {
  std::vector<std::uint32_t> misses(job_->members.slots());
  std::uint32_t parts = 0;
  for (const WorkerShare& share : work.shares()) {
    const WorkerId contributor = share.member.worker;
    const bool reachable = job_->HeardSince(contributor, pinged_at);
    for (std::size_t i = 0; i < share.parts.size(); ++i) {
      if (share.parts[i].is_void) continue;
      parts += reachable ? 1 : 0;
      if (share.parts[i].delivered_at) continue;
      const PartIndex part(static_cast<std::uint8_t>(i));
      for (const WorkerId owner : work.delivery().Missing(contributor, part)) {
        if (reachable || !job_->HeardSince(owner, pinged_at)) ++misses[owner.value];
      }
    }
  }
  std::vector<WorkerId> silent;
  std::vector<WorkerId> slow;
  for (const OwnerShare& share : work.owners().owners) {
    const WorkerId owner = share.owner.worker;
    if (misses[owner.value] == 0) continue;
    if (!job_->HeardSince(owner, pinged_at)) silent.push_back(owner);
    if (2 * misses[owner.value] > parts) slow.push_back(owner);
  }
  // Silence explains the misses of all that wait for it, so nobody else is blamed beside it. When
  // most owners are slow, the cause is the contributors or the links.
  if (!silent.empty()) return silent;
  return 2 * slow.size() <= work.owners().owners.size() ? slow : std::vector<WorkerId>{};
}

void ReceiptWatch::CheckInvariants() const {
  LOCKSTEP_CHECK(patience_ > Duration{}, "I6: receipts are late at once");
  LOCKSTEP_CHECK(from_ <= job_->now(), "I6: receipts are awaited from a time to come");
  LOCKSTEP_CHECK(!pinged_at_ || *pinged_at_ >= from_, "owners were asked before they were awaited");
}

}  // namespace lockstep::coordinator
