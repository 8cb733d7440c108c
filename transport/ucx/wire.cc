#include "transport/ucx/wire.h"

#include "base/check.h"

namespace lockstep::transport::ucx {
namespace {

constexpr std::size_t kPrefixBytes = 8;
constexpr std::size_t kFetchBytes = kPrefixBytes + 8 + 40;
constexpr std::size_t kPieceBytes = kPrefixBytes + 16;
static_assert(kFetchBytes <= kMaxHeaderBytes && kPieceBytes <= kMaxHeaderBytes);

class Writer {
 public:
  Writer(Frame frame, std::uint16_t status, std::uint32_t sequence) {
    Put(kWireVersion);
    Put(static_cast<std::uint8_t>(frame));
    Put(status);
    Put(sequence);
  }

  template <class T>
  void Put(T value) {
    LOCKSTEP_CHECK(header_.size + sizeof(T) <= header_.data.size());
    for (std::size_t i = 0; i < sizeof(T); ++i) {
      header_.data[header_.size++] = static_cast<std::byte>((value >> (8 * i)) & 0xff);
    }
  }

  const HeaderBytes& header() const { return header_; }

 private:
  HeaderBytes header_;
};

class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : bytes_(bytes) {}

  template <class T>
  T Get() {
    LOCKSTEP_CHECK(at_ + sizeof(T) <= bytes_.size());
    T value = 0;
    for (std::size_t i = 0; i < sizeof(T); ++i) {
      value = static_cast<T>(value | static_cast<T>(static_cast<T>(bytes_[at_++]) << (8 * i)));
    }
    return value;
  }

 private:
  std::span<const std::byte> bytes_;
  std::size_t at_ = 0;
};

struct Prefix {
  std::uint16_t status = 0;
  std::uint32_t sequence = 0;
};

// Leaves `reader` behind the prefix.
std::optional<Prefix> ReadPrefix(std::span<const std::byte> header, Frame frame, std::size_t bytes,
                                 Reader& reader) {
  if (header.size() != bytes) return std::nullopt;
  if (reader.Get<std::uint8_t>() != kWireVersion) return std::nullopt;
  if (reader.Get<std::uint8_t>() != static_cast<std::uint8_t>(frame)) return std::nullopt;
  Prefix prefix;
  prefix.status = reader.Get<std::uint16_t>();
  prefix.sequence = reader.Get<std::uint32_t>();
  return prefix;
}

}  // namespace

HeaderBytes EncodeHandshake() { return Writer(Frame::kHandshake, 0, 0).header(); }

HeaderBytes EncodeMessage(std::uint32_t sequence) {
  return Writer(Frame::kMessage, 0, sequence).header();
}

HeaderBytes EncodeFetch(const FetchHeader& fetch) {
  Writer writer(Frame::kFetch, 0, 0);
  writer.Put(fetch.fetch);
  writer.Put(fetch.name.kind);
  writer.Put(fetch.name.attempt);
  writer.Put(fetch.name.round);
  writer.Put(fetch.name.owner);
  writer.Put(fetch.name.part);
  writer.Put(fetch.name.offset);
  writer.Put(fetch.name.bytes);
  return writer.header();
}

HeaderBytes EncodePiece(const PieceHeader& piece) {
  Writer writer(Frame::kPiece, static_cast<std::uint16_t>(piece.status), 0);
  writer.Put(piece.fetch);
  writer.Put(piece.bytes);
  return writer.header();
}

bool IsHandshake(std::span<const std::byte> header) {
  Reader reader(header);
  const auto prefix = ReadPrefix(header, Frame::kHandshake, kPrefixBytes, reader);
  return prefix && prefix->status == 0 && prefix->sequence == 0;
}

std::optional<std::uint32_t> DecodeMessage(std::span<const std::byte> header) {
  Reader reader(header);
  const auto prefix = ReadPrefix(header, Frame::kMessage, kPrefixBytes, reader);
  if (!prefix || prefix->status != 0) return std::nullopt;
  return prefix->sequence;
}

std::optional<FetchHeader> DecodeFetch(std::span<const std::byte> header) {
  Reader reader(header);
  const auto prefix = ReadPrefix(header, Frame::kFetch, kFetchBytes, reader);
  if (!prefix || prefix->status != 0 || prefix->sequence != 0) return std::nullopt;
  FetchHeader fetch;
  fetch.fetch = reader.Get<std::uint64_t>();
  fetch.name.kind = reader.Get<std::uint32_t>();
  fetch.name.attempt = reader.Get<std::uint32_t>();
  fetch.name.round = reader.Get<std::uint64_t>();
  fetch.name.owner = reader.Get<std::uint32_t>();
  fetch.name.part = reader.Get<std::uint32_t>();
  fetch.name.offset = reader.Get<std::uint64_t>();
  fetch.name.bytes = reader.Get<std::uint64_t>();
  return fetch;
}

std::optional<PieceHeader> DecodePiece(std::span<const std::byte> header) {
  Reader reader(header);
  const auto prefix = ReadPrefix(header, Frame::kPiece, kPieceBytes, reader);
  if (!prefix || prefix->sequence != 0) return std::nullopt;
  PieceHeader piece;
  piece.status = static_cast<PieceStatus>(prefix->status);
  if (piece.status != PieceStatus::kOk && piece.status != PieceStatus::kGone) return std::nullopt;
  piece.fetch = reader.Get<std::uint64_t>();
  piece.bytes = reader.Get<std::uint64_t>();
  if (piece.status == PieceStatus::kGone && piece.bytes != 0) return std::nullopt;
  return piece;
}

}  // namespace lockstep::transport::ucx
