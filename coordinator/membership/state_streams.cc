#include "coordinator/membership/state_streams.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/check.h"

namespace lockstep::coordinator {

std::uint64_t StateStreams::Total() const {
  return job_->agreed().parameter_count * sizeof(float) *
         (std::uint64_t{1} + job_->agreed().state_tensors);
}

bool StateStreams::HasAll(const MemberId& member) const {
  const auto found = streams_.find(member);
  return found != streams_.end() && found->second.taken == Total();
}

void StateStreams::Send(const MemberId& to, Stream& stream) {
  const std::uint64_t upto = std::min(Total(), stream.taken + kBytesUnderWay);
  if (upto == stream.sent) return;
  LOCKSTEP_CHECK(upto > stream.sent, "worker {} is sent less than before", to.worker);
  stream.sent = upto;
  job_->Emit(StreamState{job_->members.at(to.worker).connection, upto});
}

void StateStreams::Begin(const Member& to) {
  LOCKSTEP_CHECK(!streams_.contains(to.id), "worker {} gets the checkpoint twice", to.id.worker);
  streams_[to.id] = {};
  ++running_;
  BeginWaiting();
}

void StateStreams::BeginWaiting() {
  std::uint32_t places = kAtOnce;
  for (const auto& [id, stream] : streams_) {
    if (stream.begun && stream.taken < Total()) --places;
  }
  for (auto& [id, stream] : streams_) {
    if (stream.begun) continue;
    if (places-- == 0) return;
    stream.begun = true;
    stream.moved = job_->now();
    Send(id, stream);
  }
}

Status StateStreams::OnCheckpointTaken(Member& from, const msg::CheckpointTaken& message) {
  const auto found = streams_.find(from.id);
  if (found == streams_.end() || message.bytes < found->second.taken ||
      message.bytes > found->second.sent) {
    return Error{ErrorCode::kInvalid, "has taken what was not sent"};
  }
  Stream& stream = found->second;
  if (message.bytes == stream.taken) return {};
  stream.taken = message.bytes;
  stream.moved = job_->now();
  if (stream.taken < Total()) {
    Send(from.id, stream);
  } else {
    LOCKSTEP_CHECK(running_ > 0, "worker {} has all, and is not counted", from.id.worker);
    --running_;
    BeginWaiting();
  }
  return {};
}

void StateStreams::OnOut(const MemberId& member) {
  const auto found = streams_.find(member);
  if (found == streams_.end()) return;
  if (found->second.taken < Total()) --running_;
  streams_.erase(found);
  BeginWaiting();
}

void StateStreams::Tick() {
  for (const auto& [id, stream] : streams_) {
    Member* member = job_->members.Find(id);
    if (member == nullptr || !stream.begun || stream.taken == Total()) continue;
    if (job_->now() - stream.moved < job_->timeout) continue;
    job_->Evict(
        *member,
        fmt::format("it has stored nothing of the checkpoint for {:.1f} s, {} of {} MiB "
                    "are stored",
                    Seconds(job_->now() - stream.moved), stream.taken >> 20, Total() >> 20));
  }
}

void StateStreams::CheckInvariants() const {
  LOCKSTEP_CHECK(streams_.size() <= job_->members.slots(), "I7: {} streams", streams_.size());
  std::uint32_t running = 0;
  std::uint32_t under_way = 0;
  for (const auto& [id, stream] : streams_) {
    LOCKSTEP_CHECK(stream.taken <= stream.sent && stream.sent <= Total(),
                   "worker {} has taken {} bytes of {} that were sent, of {}", id.worker,
                   stream.taken, stream.sent, Total());
    LOCKSTEP_CHECK(stream.sent - stream.taken <= kBytesUnderWay,
                   "I7: {} bytes are under way to worker {}", stream.sent - stream.taken,
                   id.worker);
    LOCKSTEP_CHECK(stream.begun || stream.sent == 0, "worker {} is sent bytes before its turn",
                   id.worker);
    running += stream.taken < Total() ? 1 : 0;
    under_way += stream.begun && stream.taken < Total() ? 1 : 0;
  }
  LOCKSTEP_CHECK(running == running_, "{} streams are not at their end, not {}", running, running_);
  LOCKSTEP_CHECK(under_way <= kAtOnce, "I7: the checkpoint goes to {} at once", under_way);
}

}  // namespace lockstep::coordinator
