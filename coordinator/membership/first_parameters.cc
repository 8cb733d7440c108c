#include "coordinator/membership/first_parameters.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "base/check.h"

namespace lockstep::coordinator {

void FirstParameters::Begin() {
  LOCKSTEP_CHECK(!used_, "the first parameters are given twice");
  used_ = true;
  for (const Member& member : job_->members.all()) {
    if (member.connected() && member.state == MemberState::kForming) {
      takers_[member.id].wants = true;
    }
  }
  Choose();
}

void FirstParameters::Want(const Member& newcomer) {
  LOCKSTEP_CHECK(used_, "worker {} wants parameters that nobody gives", newcomer.id.worker);
  takers_[newcomer.id].wants = true;
  if (!giver_) Choose();
}

// What they have been sent in all stays known: they go on counting what they take.
void FirstParameters::End() {
  giver_.reset();
  for (auto& [id, taker] : takers_) taker.wants = taker.now = taker.has_all = false;
}

bool FirstParameters::HasAll(const MemberId& member) const {
  const auto found = takers_.find(member);
  return found != takers_.end() && found->second.has_all;
}

std::string FirstParameters::Waiting() const {
  if (!giver_) return {};
  const MemberId* slowest = &*giver_;
  std::uint64_t behind = 0;
  for (const auto& [id, taker] : takers_) {
    if (!taker.now || taker.sent - taker.taken <= behind) continue;
    behind = taker.sent - taker.taken;
    slowest = &id;
  }
  return fmt::format("waiting for worker {}: {} of {} MiB of worker {}'s parameters are with all",
                     slowest->worker, (come_ - std::min(come_, behind)) >> 20, Total() >> 20,
                     giver_->worker);
}

// The lowest id: what a run begins with does not depend on who came first. When they are
// everywhere, only one who is live, whose parameters are still those.
void FirstParameters::Choose() {
  giver_.reset();
  const MemberState may = everywhere_ ? MemberState::kLive : MemberState::kForming;
  for (const Member& member : job_->members.all()) {
    if (!member.connected() || member.state != may || (giver_ && *giver_ < member.id)) continue;
    giver_ = member.id;
  }
  if (!giver_) return;
  Taker& giver = takers_[*giver_];
  giver.wants = false;
  giver.has_all = true;
  for (auto& [id, taker] : takers_) taker.now = taker.wants;
  ++giving_;
  come_ = allowed_ = 0;
  moved_ = job_->now();
  if (!everywhere_) {
    job_->Log(LogLevel::kInfo, "the job begins with the parameters of worker {}, {:.1f} MiB",
              giver_->worker, static_cast<double>(Total()) / (1 << 20));
    // It knows at once that the job's are its own: it may be that nobody needs them, or soon will.
    Allow(0);
  }
  GoOn();
}

void FirstParameters::Allow(std::uint64_t upto) {
  LOCKSTEP_CHECK(giver_ && upto >= allowed_ && upto <= Total(), "{} bytes may be sent, after {}",
                 upto, allowed_);
  if (come_ == allowed_) moved_ = job_->now();
  allowed_ = upto;
  job_->Send(job_->members.at(giver_->worker), msg::GiveParameters{giving_, allowed_});
}

void FirstParameters::GoOn() {
  if (!giver_) return;
  std::uint64_t behind = 0;  // bytes that the slowest lacks of what has come
  bool any = false;
  for (const auto& [id, taker] : takers_) {
    if (!taker.now) continue;
    any = true;
    behind = std::max(behind, taker.sent - taker.taken);
  }
  if (any && (come_ < Total() || behind > 0)) {
    if (behind >= window_) return;
    std::uint64_t upto = std::min(Total(), come_ + window_ - behind);
    upto -= upto % sizeof(float);
    if (upto > allowed_) Allow(upto);
    return;
  }
  giver_.reset();
  everywhere_ = true;
  bool more = false;  // it came in the middle
  for (auto& [id, taker] : takers_) {
    if (taker.now) taker.has_all = true;
    taker.wants = taker.wants && !taker.now;
    taker.now = false;
    more = more || taker.wants;
  }
  if (more) Choose();
}

// One connection, so anything out of order is a violation; what is left of a giving that is over is
// none.
Status FirstParameters::OnGiven(Member& from, msg::Given message) {
  if (!used_ || message.giving > giving_) {
    return Error{ErrorCode::kInvalid, "gives parameters that nobody asked for"};
  }
  if (message.giving < giving_ || giver_ != from.id) return {};
  const std::uint64_t bytes = message.bytes.size();
  if (message.offset != come_ || bytes == 0 || bytes > allowed_ - come_ ||
      bytes % sizeof(float) != 0) {
    return Error{ErrorCode::kInvalid, "gives its parameters out of order"};
  }
  come_ += bytes;
  moved_ = job_->now();
  std::vector<MemberId> to;
  for (auto& [id, taker] : takers_) {
    if (!taker.now) continue;
    if (taker.sent == taker.taken) taker.moved = job_->now();
    taker.sent += bytes;
    to.push_back(id);
  }
  job_->Send(to, msg::StateChunk{.round = RoundId(0),
                                 .tensor = 0,
                                 .offset = message.offset,
                                 .last = come_ == Total(),
                                 .bytes = std::move(message.bytes)});
  GoOn();
  return {};
}

// One that gives now may still tell what it took of another's before.
Status FirstParameters::OnCheckpointTaken(Member& from, const msg::CheckpointTaken& message) {
  const auto found = takers_.find(from.id);
  if (found == takers_.end()) return {};
  Taker& taker = found->second;
  if (message.bytes < taker.taken || message.bytes > taker.sent ||
      message.bytes % sizeof(float) != 0) {
    return Error{ErrorCode::kInvalid, "has taken what was not sent"};
  }
  if (message.bytes == taker.taken) return {};
  taker.taken = message.bytes;
  taker.moved = job_->now();
  GoOn();
  return {};
}

void FirstParameters::OnOut(const MemberId& member) {
  takers_.erase(member);
  if (giver_ == member) {
    Choose();
  } else {
    GoOn();
  }
}

void FirstParameters::Tick() {
  if (!giver_) return;
  Member* giver = job_->members.Find(*giver_);
  if (giver == nullptr) return;  // it leaves in this step
  if (giver->state != MemberState::kForming && !giver->live()) return Choose();
  for (const auto& [id, taker] : takers_) {
    if (!taker.now || taker.sent == taker.taken) continue;
    const Duration silent = job_->now() - taker.moved;
    Member* member = job_->members.Find(id);
    if (member == nullptr || silent < job_->timeout) continue;
    job_->Evict(*member, fmt::format("it has taken nothing of the first parameters for {:.1f} s",
                                     Seconds(silent)));
  }
  const Duration silent = job_->now() - moved_;
  if (come_ == allowed_ || silent < job_->timeout) return;
  job_->Evict(*giver, fmt::format("it has given nothing of its parameters for {:.1f} s, {} of {} "
                                  "MiB have come",
                                  Seconds(silent), come_ >> 20, Total() >> 20));
}

void FirstParameters::CheckInvariants() const {
  LOCKSTEP_CHECK(takers_.size() <= job_->members.slots(), "I7: {} take parameters", takers_.size());
  LOCKSTEP_CHECK(come_ <= allowed_ && allowed_ - come_ <= window_,
                 "I7: {} bytes have come of {} that may be sent", come_, allowed_);
  LOCKSTEP_CHECK(!giver_ || (used_ && HasAll(*giver_)), "parameters are given by one without");
  for (const auto& [id, taker] : takers_) {
    LOCKSTEP_CHECK(taker.taken <= taker.sent, "worker {} has taken {} bytes of {}", id.worker,
                   taker.taken, taker.sent);
    LOCKSTEP_CHECK(!giver_ || !taker.now || id != *giver_, "worker {} gives to itself", id.worker);
  }
}

}  // namespace lockstep::coordinator
