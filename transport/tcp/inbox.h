// Cuts one connection's input into frames. It does no I/O: it names the place of the next bytes,
// and its owner reads them there. It is made for bytes of strangers: for any input, Next returns a
// frame, nothing or an error.
//
// Small frames are assembled in a buffer of fixed size. The body of a piece goes straight to its
// destination, or to the scratch memory when nobody wants it any more.
#pragma once

#include <sys/uio.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "transport/tcp/frame.h"

namespace lockstep::transport::tcp {

class Inbox {
 public:
  enum class Event : std::uint8_t {
    kNone,   // more bytes are needed
    kFrame,  // header() and body(); of a kPiece the header only: call ReadBodyInto or ReadBodyAway
             // before Next
    kPieceDone,  // the body of the piece header().id is complete, or read away
  };
  static constexpr std::size_t kMaxVectors = 2;

  // Before Grow there is room for a handshake frame only: a stranger costs little. `scratch` may be
  // shared with other inboxes.
  explicit Inbox(std::span<std::byte> scratch);
  void Grow();

  // The place of the next bytes; returns the number of vectors that were filled, at least one.
  // `bulk_expected`: read little ahead of a header, since bytes that are read ahead of a piece have
  // to be copied.
  std::size_t Space(std::array<iovec, kMaxVectors>& vectors, bool bulk_expected);
  void Filled(std::size_t bytes);

  Result<Event> Next();
  const FrameHeader& header() const { return header_; }
  // It is valid until the next Space.
  std::span<const std::byte> body() const { return body_; }

  // `destination` has the length that the header announces and stays valid until kPieceDone or
  // DropDestination.
  void ReadBodyInto(std::span<std::byte> destination);
  void ReadBodyAway();
  // Discards the rest of the current body; its destination is not touched any more.
  void DropDestination() { destination_ = nullptr; }
  // Whether the body of this piece is under way.
  bool InBodyOf(std::uint64_t id) const { return in_piece_ && header_.id == id; }

 private:
  std::size_t held() const { return end_ - begin_; }

  const std::span<std::byte> scratch_;
  std::vector<std::byte> buffer_;
  std::size_t begin_ = 0;
  std::size_t end_ = 0;
  FrameHeader header_;
  std::span<const std::byte> body_;
  bool in_piece_ = false;
  std::byte* destination_ = nullptr;  // of the next byte; null: the body is discarded
  std::size_t piece_left_ = 0;
};

}  // namespace lockstep::transport::tcp
