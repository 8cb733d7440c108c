#include "transport/tcp/frame.h"

#include <fmt/format.h>

#include <algorithm>
#include <concepts>

#include "base/check.h"
#include "transport/handshake.h"

namespace lockstep::transport::tcp {
namespace {

template <std::unsigned_integral T>
void Store(std::byte* at, T value) {
  for (std::size_t i = 0; i < sizeof(T); ++i) at[i] = static_cast<std::byte>(value >> (8 * i));
}

template <std::unsigned_integral T>
T Load(const std::byte* at) {
  T value = 0;
  for (std::size_t i = 0; i < sizeof(T); ++i) {
    value |= static_cast<T>(std::to_integer<T>(at[i]) << (8 * i));
  }
  return value;
}

struct LengthRule {
  std::size_t least;
  std::size_t most;
};

LengthRule RuleOf(FrameType type) {
  switch (type) {
    case FrameType::kHandshake:
      return {1, Handshake::kMaxMessageBytes};
    case FrameType::kMessage:
      return {0, kMaxMessageBytes};
    case FrameType::kFetch:
      return {kPieceNameBytes, kPieceNameBytes};
    case FrameType::kPiece:
      return {0, kMaxPieceBytes};
    case FrameType::kSettings:
      return {0, kConnectionPlaceBytes};
    case FrameType::kCancel:
    case FrameType::kGone:
    case FrameType::kBegin:
      return {0, 0};
  }
  return {1, 0};
}

}  // namespace

std::array<std::byte, kHeaderBytes> EncodeHeader(const FrameHeader& header) {
  std::array<std::byte, kHeaderBytes> out{};
  Store(&out[0], header.bytes);
  out[4] = static_cast<std::byte>(header.type);
  Store(&out[8], header.id);
  return out;
}

std::array<std::byte, kPieceNameBytes> EncodePieceName(const PieceName& name) {
  std::array<std::byte, kPieceNameBytes> out{};
  Store(&out[0], name.kind);
  Store(&out[4], name.attempt);
  Store(&out[8], name.round);
  Store(&out[16], name.owner);
  Store(&out[20], name.part);
  Store(&out[24], name.offset);
  Store(&out[32], name.bytes);
  return out;
}

std::array<std::byte, kConnectionPlaceBytes> EncodeConnectionPlace(const ConnectionPlace& place) {
  std::array<std::byte, kConnectionPlaceBytes> out{};
  Store(&out[0], place.connections);
  Store(&out[4], place.number);
  std::ranges::copy(place.group, &out[8]);
  return out;
}

Result<FrameHeader> DecodeHeader(std::span<const std::byte, kHeaderBytes> bytes) {
  const auto type = std::to_integer<std::uint8_t>(bytes[4]);
  if (type < static_cast<std::uint8_t>(FrameType::kHandshake) ||
      type > static_cast<std::uint8_t>(FrameType::kBegin)) {
    return Error{ErrorCode::kInvalid, fmt::format("a frame of the unknown type {}", type)};
  }
  if (bytes[5] != std::byte{0} || bytes[6] != std::byte{0} || bytes[7] != std::byte{0}) {
    return Error{ErrorCode::kInvalid, "a frame header with other bytes than zeros in its gap"};
  }
  const FrameHeader header{static_cast<FrameType>(type), Load<std::uint32_t>(&bytes[0]),
                           Load<std::uint64_t>(&bytes[8])};
  const LengthRule rule = RuleOf(header.type);
  const bool neither = header.type == FrameType::kSettings && header.bytes != rule.least &&
                       header.bytes != rule.most;
  if (header.bytes < rule.least || header.bytes > rule.most || neither) {
    return Error{ErrorCode::kInvalid,
                 fmt::format("a frame of type {} with {} bytes", type, header.bytes)};
  }
  if (header.type == FrameType::kSettings && (header.id < 1 || header.id > kMaxWindow)) {
    return Error{ErrorCode::kInvalid, fmt::format("a fetch window of {}", header.id)};
  }
  return header;
}

Result<PieceName> DecodePieceName(std::span<const std::byte, kPieceNameBytes> bytes) {
  PieceName name;
  name.kind = Load<std::uint32_t>(&bytes[0]);
  name.attempt = Load<std::uint32_t>(&bytes[4]);
  name.round = Load<std::uint64_t>(&bytes[8]);
  name.owner = Load<std::uint32_t>(&bytes[16]);
  name.part = Load<std::uint32_t>(&bytes[20]);
  name.offset = Load<std::uint64_t>(&bytes[24]);
  name.bytes = Load<std::uint64_t>(&bytes[32]);
  if (name.bytes > kMaxPieceBytes) {
    return Error{ErrorCode::kInvalid, fmt::format("a fetch of {} bytes", name.bytes)};
  }
  return name;
}

Result<ConnectionPlace> DecodeConnectionPlace(std::span<const std::byte> body) {
  ConnectionPlace place;
  if (body.empty()) return place;
  LOCKSTEP_CHECK(body.size() == kConnectionPlaceBytes);
  place.connections = Load<std::uint32_t>(&body[0]);
  place.number = Load<std::uint32_t>(&body[4]);
  std::ranges::copy(body.subspan(8), place.group.begin());
  if (place.connections < 2 || place.connections > kMaxConnections ||
      place.number >= place.connections) {
    return Error{ErrorCode::kInvalid,
                 fmt::format("connection {} of {}", place.number, place.connections)};
  }
  return place;
}

}  // namespace lockstep::transport::tcp
