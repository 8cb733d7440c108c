// The frames of the UCX transport. Each travels as one active message: a short header, which this
// file encodes, and a body.
//
//   frame      body               header after the prefix
//   handshake  Handshake's bytes  -
//   message    the user's bytes   - (the prefix carries its sequence number)
//   fetch      -                  fetch id (8), piece name (40)
//   piece      the piece          fetch id (8), bytes (8); the prefix carries the status
//
// The prefix: version (1), frame (1), status (2), sequence (4). Integers are little-endian, unused
// fields are zero.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "transport/transport.h"

namespace lockstep::transport::ucx {

// Also the active message id.
enum class Frame : std::uint8_t { kHandshake = 1, kMessage = 2, kFetch = 3, kPiece = 4 };
inline constexpr std::array kFrames = {Frame::kHandshake, Frame::kMessage, Frame::kFetch,
                                       Frame::kPiece};

enum class PieceStatus : std::uint16_t { kOk = 0, kGone = 1 };

inline constexpr std::uint8_t kWireVersion = 1;
inline constexpr std::size_t kMaxHeaderBytes = 56;

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

HeaderBytes EncodeHandshake();
HeaderBytes EncodeMessage(std::uint32_t sequence);
HeaderBytes EncodeFetch(const FetchHeader& fetch);
HeaderBytes EncodePiece(const PieceHeader& piece);

// Nothing for bytes that are no such header: a wrong length, version, frame or status, or an unused
// field that is set.
bool IsHandshake(std::span<const std::byte> header);
std::optional<std::uint32_t> DecodeMessage(std::span<const std::byte> header);
std::optional<FetchHeader> DecodeFetch(std::span<const std::byte> header);
std::optional<PieceHeader> DecodePiece(std::span<const std::byte> header);

}  // namespace lockstep::transport::ucx
