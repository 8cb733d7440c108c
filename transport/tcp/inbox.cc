#include "transport/tcp/inbox.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "transport/handshake.h"

namespace lockstep::transport::tcp {
namespace {

constexpr std::size_t kReadAhead = 2u << 10;

}  // namespace

Inbox::Inbox(std::span<std::byte> scratch)
    : scratch_(scratch), buffer_(kHeaderBytes + Handshake::kMaxMessageBytes) {}

void Inbox::Grow() {
  // Keeps the buffered bytes, and body() out of reach: Next has been consumed.
  buffer_.resize(kHeaderBytes + kMaxMessageBytes);
}

std::size_t Inbox::Space(std::array<iovec, kMaxVectors>& vectors, bool bulk_expected) {
  if (begin_ > 0) {
    std::memmove(buffer_.data(), buffer_.data() + begin_, held());
    end_ -= begin_;
    begin_ = 0;
  }
  std::size_t count = 0;
  std::size_t ahead = buffer_.size() - end_;
  if (in_piece_) {
    LOCKSTEP_CHECK(end_ == 0 && piece_left_ > 0);
    const std::size_t room =
        destination_ != nullptr ? piece_left_ : std::min(piece_left_, scratch_.size());
    vectors[count++] = {destination_ != nullptr ? destination_ : scratch_.data(), room};
    if (room < piece_left_) return count;
    ahead = std::min(ahead, kReadAhead);
  } else if (bulk_expected) {
    // The rest of a frame that has begun must fit.
    const std::size_t frame = header_.bytes + kHeaderBytes;
    const std::size_t missing = held() >= kHeaderBytes && frame > held() ? frame - held() : 0;
    ahead = std::min(ahead, std::max(missing, kReadAhead));
  }
  LOCKSTEP_CHECK(ahead > 0, "the buffer is full and holds no frame");
  vectors[count++] = {buffer_.data() + end_, ahead};
  return count;
}

void Inbox::Filled(std::size_t bytes) {
  if (in_piece_) {
    const std::size_t into_piece = std::min(bytes, piece_left_);
    piece_left_ -= into_piece;
    if (destination_ != nullptr) destination_ += into_piece;
    bytes -= into_piece;
  }
  end_ += bytes;
  LOCKSTEP_CHECK(end_ <= buffer_.size(), "more was read than there was room for");
}

Result<Inbox::Event> Inbox::Next() {
  if (in_piece_) {
    const std::size_t copied = std::min(piece_left_, held());
    if (copied > 0 && destination_ != nullptr) {
      std::memcpy(destination_, buffer_.data() + begin_, copied);
      destination_ += copied;
    }
    begin_ += copied;
    piece_left_ -= copied;
    if (piece_left_ > 0) return Event::kNone;
    in_piece_ = false;
    return Event::kPieceDone;
  }
  if (held() < kHeaderBytes) return Event::kNone;
  auto header =
      DecodeHeader(std::span<const std::byte, kHeaderBytes>(&buffer_[begin_], kHeaderBytes));
  if (!header) return header.error();
  header_ = *header;
  if (header_.type == FrameType::kPiece) {
    begin_ += kHeaderBytes;
    body_ = {};
    return Event::kFrame;
  }
  const std::size_t whole = kHeaderBytes + header_.bytes;
  if (whole > buffer_.size()) {
    return Error{ErrorCode::kInvalid, "a frame of that length before the handshake is over"};
  }
  if (held() < whole) return Event::kNone;
  body_ = std::span(buffer_).subspan(begin_ + kHeaderBytes, header_.bytes);
  begin_ += whole;
  return Event::kFrame;
}

void Inbox::ReadBodyInto(std::span<std::byte> destination) {
  LOCKSTEP_CHECK(!in_piece_ && header_.type == FrameType::kPiece &&
                 destination.size() == header_.bytes);
  in_piece_ = true;
  destination_ = destination.data();
  piece_left_ = destination.size();
}

void Inbox::ReadBodyAway() {
  LOCKSTEP_CHECK(!in_piece_ && header_.type == FrameType::kPiece);
  in_piece_ = true;
  destination_ = nullptr;
  piece_left_ = header_.bytes;
}

}  // namespace lockstep::transport::tcp
