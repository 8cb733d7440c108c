// Cuts what one connection reads into frames. No I/O: it says where the next bytes belong, its
// owner reads them there. Made for bytes of strangers: whatever they are, Next returns a frame,
// nothing or an error.
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

  // Until Grow, room for a handshake frame only: a stranger costs little. `scratch` may be shared
  // with other inboxes.
  explicit Inbox(std::span<std::byte> scratch);
  void Grow();

  // Where the next bytes belong; returns how many vectors were filled, at least one.
  // `bulk_expected`: read little ahead of a header, since what is read ahead of a piece has to be
  // copied.
  std::size_t Space(std::array<iovec, kMaxVectors>& vectors, bool bulk_expected);
  void Filled(std::size_t bytes);

  Result<Event> Next();
  const FrameHeader& header() const { return header_; }
  // Valid until the next Space.
  std::span<const std::byte> body() const { return body_; }

  // `destination` has the length that the header announces and stays valid until kPieceDone or
  // DropDestination.
  void ReadBodyInto(std::span<std::byte> destination);
  void ReadBodyAway();
  // The rest of the body under way is read away; its destination is not touched any more.
  void DropDestination() { destination_ = nullptr; }
  // The piece whose body is under way.
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
  std::byte* destination_ = nullptr;  // of the next byte; null: read away
  std::size_t piece_left_ = 0;
};

}  // namespace lockstep::transport::tcp
