// The frames of the UCX transport. Each travels as one active message: a short header, which this
// file encodes, and a body.
//
//   frame      body               header after the prefix
//   handshake  Handshake's bytes  from (8)
//   message    the user's bytes   - (the prefix carries its sequence number)
//   fetch      -                  fetch id (8), piece name (40)
//   piece      the piece          fetch id (8), bytes (8); the prefix carries the status
//   goodbye    -                  -
//   ping       -                  -
//
// The prefix: version (1), frame (1), status (2), sequence (4), to (8). Integers are little-endian,
// unused fields are zero.
//
// Each end of a connection has a random number for it; `to` is the receiver's, `from` the sender's.
// It assigns a frame to its connection, whatever UCX thinks of its source: a late one, for a
// connection that has ended or an incarnation that is gone, finds nobody. The connector's first
// frame has `to` 0. Where no listener brings it, its body begins with an Introduction.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "transport/transport.h"

namespace lockstep::transport::ucx {

// It is also the active message id.
enum class Frame : std::uint8_t {
  kHandshake = 1,
  kMessage = 2,
  kFetch = 3,
  kPiece = 4,
  kGoodbye = 5,
  kPing = 6
};
inline constexpr std::array kFrames = {Frame::kHandshake, Frame::kMessage, Frame::kFetch,
                                       Frame::kPiece,     Frame::kGoodbye, Frame::kPing};

enum class PieceStatus : std::uint16_t { kOk = 0, kGone = 1 };

inline constexpr std::uint8_t kWireVersion = 2;
inline constexpr std::size_t kMaxHeaderBytes = 64;

// The bytes of a header and how many of them count.
struct HeaderBytes {
  std::array<std::byte, kMaxHeaderBytes> data{};
  std::size_t size = 0;
};

struct FetchHeader {
  std::uint64_t fetch = 0;
  PieceName name;
};

struct PieceHeader {
  std::uint64_t fetch = 0;
  PieceStatus status = PieceStatus::kOk;
  std::uint64_t bytes = 0;
};

// The sender and receiver of a hello, where the two ends have only an address of each other.
struct Introduction {
  // The number of UCX endpoints that the sender had made to the receiver before; see
  // Engine::Accept.
  std::uint32_t endpoints = 0;
  std::string address;  // the sender's
};

HeaderBytes EncodeHandshake(std::uint64_t to, std::uint64_t from);
HeaderBytes EncodeMessage(std::uint64_t to, std::uint32_t sequence);
HeaderBytes EncodeFetch(std::uint64_t to, const FetchHeader& fetch);
HeaderBytes EncodePiece(std::uint64_t to, const PieceHeader& piece);
HeaderBytes EncodeGoodbye(std::uint64_t to);
HeaderBytes EncodePing(std::uint64_t to);
// The bytes before the handshake's in the body.
std::vector<std::byte> EncodeIntroduction(const Introduction& introduction,
                                          std::span<const std::byte> handshake);

// The receiver of a frame of any kind. nullopt where it does not even have a prefix of this
// version.
std::optional<std::uint64_t> DecodeTo(std::span<const std::byte> header);

// nullopt for bytes that are no such header: a wrong length, version, frame or status, or an unused
// field that is set. All have their `to`, whatever it is.
std::optional<std::uint64_t> DecodeHandshake(std::span<const std::byte> header);  // from, not 0
std::optional<std::uint32_t> DecodeMessage(std::span<const std::byte> header);
std::optional<FetchHeader> DecodeFetch(std::span<const std::byte> header);
std::optional<PieceHeader> DecodePiece(std::span<const std::byte> header);
bool IsGoodbye(std::span<const std::byte> header);
// Cuts the introduction off `body`, which then holds the handshake's bytes.
std::optional<Introduction> DecodeIntroduction(std::span<const std::byte>& body);

}  // namespace lockstep::transport::ucx
