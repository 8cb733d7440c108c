#include "coordinator/membership/initial_broadcast.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "base/check.h"

namespace lockstep::coordinator {

void InitialBroadcast::Begin() {
  LOCKSTEP_CHECK(!used_, "the first parameters are given twice");
  used_ = true;
  for (const Member& member : job_->members.all()) {
    if (member.connected() && member.state == MemberState::kForming) {
      receivers_[member.id].wants = true;
    }
  }
  Choose();
}

void InitialBroadcast::GoOnWithHolders() {
  LOCKSTEP_CHECK(!used_, "the first parameters are given twice");
  used_ = completed_ = true;
}

void InitialBroadcast::Want(const Member& newcomer) {
  LOCKSTEP_CHECK(used_, "worker {} wants parameters that nobody gives", newcomer.id.worker);
  receivers_[newcomer.id].wants = true;
  if (!root_) Choose();
}

// The bytes that receivers were sent in all stay known, since they go on counting them.
void InitialBroadcast::End() {
  root_.reset();
  for (auto& [id, receiver] : receivers_) receiver.wants = receiver.now = receiver.has_all = false;
}

bool InitialBroadcast::HasAll(const MemberId& member) const {
  const auto found = receivers_.find(member);
  return found != receivers_.end() && found->second.has_all;
}

std::string InitialBroadcast::Waiting() const {
  if (!root_) return {};
  const MemberId* slowest = &*root_;
  std::uint64_t behind = 0;
  for (const auto& [id, receiver] : receivers_) {
    if (!receiver.now || receiver.sent - receiver.taken <= behind) continue;
    behind = receiver.sent - receiver.taken;
    slowest = &id;
  }
  return fmt::format("waiting for worker {}: {} of {} MiB of worker {}'s parameters are with all",
                     slowest->worker, (received_ - std::min(received_, behind)) >> 20,
                     Total() >> 20, root_->worker);
}

// The lowest id: what a run begins with does not depend on who came first. When all have them, the
// root must be live, with parameters that are still those.
void InitialBroadcast::Choose() {
  root_.reset();
  const MemberState may = completed_ ? MemberState::kLive : MemberState::kForming;
  for (const Member& member : job_->members.all()) {
    if (!member.connected() || member.state != may || (root_ && *root_ < member.id)) continue;
    root_ = member.id;
  }
  if (!root_) return;
  Receiver& root = receivers_[*root_];
  root.wants = false;
  root.has_all = true;
  for (auto& [id, receiver] : receivers_) receiver.now = receiver.wants;
  ++broadcast_;
  received_ = allowed_ = 0;
  moved_ = job_->now();
  if (!completed_) {
    job_->Log(LogLevel::kInfo, "the job begins with the parameters of worker {}, {:.1f} MiB",
              root_->worker, static_cast<double>(Total()) / (1 << 20));
    // It knows at once that the job's are its own: it may be that nobody needs them, or soon will.
    Allow(0);
  }
  GoOn();
}

void InitialBroadcast::Allow(std::uint64_t upto) {
  LOCKSTEP_CHECK(root_ && upto >= allowed_ && upto <= Total(), "{} bytes may be sent, after {}",
                 upto, allowed_);
  if (received_ == allowed_) moved_ = job_->now();
  allowed_ = upto;
  job_->Send(job_->members.at(root_->worker), msg::GiveParameters{broadcast_, allowed_});
}

void InitialBroadcast::GoOn() {
  if (!root_) return;
  std::uint64_t behind = 0;  // bytes that the slowest lacks of what has come
  bool any = false;
  for (const auto& [id, receiver] : receivers_) {
    if (!receiver.now) continue;
    any = true;
    behind = std::max(behind, receiver.sent - receiver.taken);
  }
  if (any && (received_ < Total() || behind > 0)) {
    if (behind >= window_) return;
    std::uint64_t upto = std::min(Total(), received_ + window_ - behind);
    upto -= upto % sizeof(float);
    if (upto > allowed_) Allow(upto);
    return;
  }
  root_.reset();
  completed_ = true;
  bool more = false;  // it came in the middle
  for (auto& [id, receiver] : receivers_) {
    if (receiver.now) receiver.has_all = true;
    receiver.wants = receiver.wants && !receiver.now;
    receiver.now = false;
    more = more || receiver.wants;
  }
  if (more) Choose();
}

// There is one connection, so a wrong order is a violation; the rest of an old broadcast is not.
Status InitialBroadcast::OnGiven(Member& from, msg::Given message) {
  if (!used_ || message.giving > broadcast_) {
    return Error{ErrorCode::kInvalid, "gives parameters that nobody asked for"};
  }
  if (message.giving < broadcast_ || root_ != from.id) return {};
  const std::uint64_t bytes = message.bytes.size();
  if (message.offset != received_ || bytes == 0 || bytes > allowed_ - received_ ||
      bytes % sizeof(float) != 0) {
    return Error{ErrorCode::kInvalid, "gives its parameters out of order"};
  }
  received_ += bytes;
  moved_ = job_->now();
  std::vector<MemberId> to;
  for (auto& [id, receiver] : receivers_) {
    if (!receiver.now) continue;
    if (receiver.sent == receiver.taken) receiver.moved = job_->now();
    receiver.sent += bytes;
    to.push_back(id);
  }
  job_->Send(to, msg::StateChunk{.round = RoundId(0),
                                 .tensor = 0,
                                 .offset = message.offset,
                                 .last = received_ == Total(),
                                 .bytes = std::move(message.bytes)});
  GoOn();
  return {};
}

// The present root may still report what it stored of an earlier root's.
Status InitialBroadcast::OnCheckpointTaken(Member& from, const msg::CheckpointTaken& message) {
  const auto found = receivers_.find(from.id);
  if (found == receivers_.end()) return {};
  Receiver& receiver = found->second;
  if (message.bytes < receiver.taken || message.bytes > receiver.sent ||
      message.bytes % sizeof(float) != 0) {
    return Error{ErrorCode::kInvalid, "has taken what was not sent"};
  }
  if (message.bytes == receiver.taken) return {};
  receiver.taken = message.bytes;
  receiver.moved = job_->now();
  GoOn();
  return {};
}

void InitialBroadcast::OnOut(const MemberId& member) {
  receivers_.erase(member);
  if (root_ == member) {
    Choose();
  } else {
    GoOn();
  }
}

void InitialBroadcast::Tick() {
  if (!root_) return;
  Member* root = job_->members.Find(*root_);
  if (root == nullptr) return;  // it leaves in this step
  if (root->state != MemberState::kForming && !root->live()) return Choose();
  for (const auto& [id, receiver] : receivers_) {
    if (!receiver.now || receiver.sent == receiver.taken) continue;
    const Duration silent = job_->now() - receiver.moved;
    Member* member = job_->members.Find(id);
    if (member == nullptr || silent < job_->timeout) continue;
    job_->Evict(*member, fmt::format("it has stored nothing of the initial parameters for {:.1f} s",
                                     Seconds(silent)));
  }
  const Duration silent = job_->now() - moved_;
  if (received_ == allowed_ || silent < job_->timeout) return;
  job_->Evict(*root, fmt::format("it has sent nothing of its parameters for {:.1f} s, {} of {} "
                                 "MiB were received",
                                 Seconds(silent), received_ >> 20, Total() >> 20));
}

void InitialBroadcast::CheckInvariants() const {
  LOCKSTEP_CHECK(receivers_.size() <= job_->members.slots(), "I7: {} take parameters",
                 receivers_.size());
  LOCKSTEP_CHECK(received_ <= allowed_ && allowed_ - received_ <= window_,
                 "I7: {} bytes have come of {} that may be sent", received_, allowed_);
  LOCKSTEP_CHECK(!root_ || (used_ && HasAll(*root_)), "parameters are given by one without");
  for (const auto& [id, receiver] : receivers_) {
    LOCKSTEP_CHECK(receiver.taken <= receiver.sent, "worker {} has taken {} bytes of {}", id.worker,
                   receiver.taken, receiver.sent);
    LOCKSTEP_CHECK(!root_ || !receiver.now || id != *root_, "worker {} gives to itself", id.worker);
  }
}

}  // namespace lockstep::coordinator
