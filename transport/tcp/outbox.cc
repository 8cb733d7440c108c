#include "transport/tcp/outbox.h"

#include <algorithm>

#include "base/check.h"

namespace lockstep::transport::tcp {

void Outbox::PushSmall(FrameType type, std::uint64_t id, std::span<const std::byte> body) {
  const auto header = EncodeHeader({type, static_cast<std::uint32_t>(body.size()), id});
  waiting_.insert(waiting_.end(), header.begin(), header.end());
  waiting_.insert(waiting_.end(), body.begin(), body.end());
}

void Outbox::PushAnswer(const Answer& answer) { answers_.push_back(answer); }

std::optional<std::uint64_t> Outbox::Cancel(std::uint64_t id) {
  Answer* found = nullptr;
  if (current_ && current_->id == id && current_written_ == 0) found = &*current_;
  for (Answer& answer : answers_) {
    if (answer.id == id) found = &answer;
  }
  if (found == nullptr || !found->have) return std::nullopt;
  const std::uint64_t cookie = found->cookie;
  *found = Answer{.id = id, .have = false, .body = {}, .cookie = 0};
  return cookie;
}

void Outbox::ChooseAnswer() {
  if (current_ || answers_.empty()) return;
  // A header alone does not delay the pieces, but would wait long behind them.
  auto next = std::ranges::find(answers_, false, &Answer::have);
  if (next == answers_.end()) next = answers_.begin();
  current_ = *next;
  answers_.erase(next);
  current_written_ = 0;
}

std::size_t Outbox::StreamBytes() const {
  const std::size_t body = current_->body.size();
  const std::size_t frames = std::max<std::size_t>(1, (body + frame_bytes_ - 1) / frame_bytes_);
  return body + frames * kHeaderBytes;
}

std::size_t Outbox::Gather(std::array<iovec, kMaxVectors>& vectors) {
  if (written_ == writing_.size() && BetweenFrames()) {
    writing_.clear();
    written_ = 0;
    std::swap(writing_, waiting_);
  }
  ChooseAnswer();
  std::size_t count = 0;
  const auto add = [&](std::span<const std::byte> bytes) {
    if (bytes.empty()) return;
    // iovec is for reading and writing alike; these bytes are only read.
    vectors[count++] = {const_cast<std::byte*>(bytes.data()), bytes.size()};
  };
  add(std::span(writing_).subspan(written_));
  if (!current_) return count;
  std::size_t frame = current_written_ / (kHeaderBytes + frame_bytes_);
  std::size_t written = current_written_ % (kHeaderBytes + frame_bytes_);  // of this frame
  for (auto& header : headers_) {
    const std::size_t from = frame * frame_bytes_;
    if (frame > 0 && from >= current_->body.size()) break;
    const std::size_t bytes = std::min(frame_bytes_, current_->body.size() - from);
    header = EncodeHeader({current_->have ? FrameType::kPiece : FrameType::kGone,
                           static_cast<std::uint32_t>(bytes), current_->id});
    const std::size_t header_written = std::min(written, kHeaderBytes);
    add(std::span(header).subspan(header_written));
    add(current_->body.subspan(from, bytes).subspan(written - header_written));
    // Waiting frames go out behind this frame.
    if (!waiting_.empty()) break;
    ++frame;
    written = 0;
  }
  return count;
}

std::optional<Outbox::Answer> Outbox::Wrote(std::size_t bytes) {
  const std::size_t small = std::min(bytes, writing_.size() - written_);
  written_ += small;
  bytes -= small;
  if (!current_) {
    LOCKSTEP_CHECK(bytes == 0, "more was written than there was");
    return std::nullopt;
  }
  current_written_ += bytes;
  const std::size_t whole = StreamBytes();
  LOCKSTEP_CHECK(current_written_ <= whole, "more was written than there was");
  if (current_written_ < whole) return std::nullopt;
  const Answer done = *current_;
  current_.reset();
  current_written_ = 0;
  return done;
}

std::vector<Outbox::Answer> Outbox::Withdraw() {
  std::vector<Answer> all;
  if (current_) all.push_back(*current_);
  all.insert(all.end(), answers_.begin(), answers_.end());
  current_.reset();
  answers_.clear();
  return all;
}

}  // namespace lockstep::transport::tcp
