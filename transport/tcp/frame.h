// The bytes of the TCP transport: a stream of frames, each a header of 16 bytes and a body.
// Integers are little-endian.
//
//   0  u32 bytes   length of the body
//   4  u8  type    FrameType
//   5  u8[3]       zero
//   8  u64 id      see FrameType; zero where it has no meaning
//
// Handshake frames come first until both ends are content, then one settings frame from each end,
// then the others in any order. Between members with several connections to each other, the
// acceptor's settings answer the connector's. The connector's next frame is a begin frame, once all
// connections have that answer. Instead of its settings an end may send a second handshake frame,
// with a refusal. A frame that breaks a rule ends the connection.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/result.h"
#include "transport/transport.h"

namespace lockstep::transport::tcp {

inline constexpr std::size_t kMaxMessageBytes = 64u << 10;
inline constexpr std::size_t kMaxPieceBytes = 4u << 20;
// A peer may announce a window up to this.
inline constexpr std::size_t kMaxWindow = 1024;
// Fetches under way plus those given up and not yet answered, over all connections to a peer: a
// multiple of the window.
inline constexpr std::size_t kWindowsOutstanding = 2;
// The most connections to one peer.
inline constexpr std::size_t kMaxConnections = 16;

enum class FrameType : std::uint8_t {
  kHandshake = 1,  // body: a message of transport/handshake.h
  kSettings = 2,   // id: the sender's fetch window, 1 .. kMaxWindow; body: a ConnectionPlace, or
                   // nothing where there is one connection
  kMessage = 3,    // body: a small message
  kFetch = 4,      // id: the requester's number for it; body: the PieceName
  kCancel = 5,     // id: of an abandoned fetch; answered like any other, as kGone if it was not
                   // begun
  kPiece = 6,  // id: of the fetch; body: the next bytes of the piece; all its frames together have
               // exactly the requested length
  kGone = 7,   // id: of the fetch
  kBegin = 8,  // all connections to this peer are there
};

struct FrameHeader {
  FrameType type = FrameType::kMessage;
  std::uint32_t bytes = 0;
  std::uint64_t id = 0;
};

// Names the connections to one peer; the acceptor draws it at random. A further connection sends it
// to show that it belongs to the main one, on which it was received.
using GroupId = std::array<std::byte, 16>;

// The number of a connection between two members.
struct ConnectionPlace {
  std::uint32_t connections = 1;  // from the first to the last
  std::uint32_t number = 0;       // 0: the main one
  GroupId group{};                // zeros in the connector's settings of the main one
  bool operator==(const ConnectionPlace&) const = default;
};

inline constexpr std::size_t kHeaderBytes = 16;
inline constexpr std::size_t kPieceNameBytes = 40;
inline constexpr std::size_t kConnectionPlaceBytes = 24;

std::array<std::byte, kHeaderBytes> EncodeHeader(const FrameHeader& header);
std::array<std::byte, kPieceNameBytes> EncodePieceName(const PieceName& name);
std::array<std::byte, kConnectionPlaceBytes> EncodeConnectionPlace(const ConnectionPlace& place);

// Checks the rules that concern a header alone: a known type, a length that the type allows, zeros
// where zeros belong.
Result<FrameHeader> DecodeHeader(std::span<const std::byte, kHeaderBytes> bytes);
// Any bytes are a name, but a length above kMaxPieceBytes is an error.
Result<PieceName> DecodePieceName(std::span<const std::byte, kPieceNameBytes> bytes);
// The body of a settings frame. An empty body means one connection; otherwise there are 2 ..
// kMaxConnections, and the number is one of them.
Result<ConnectionPlace> DecodeConnectionPlace(std::span<const std::byte> body);

}  // namespace lockstep::transport::tcp
