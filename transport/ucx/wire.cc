#include "transport/ucx/wire.h"

#include "base/check.h"

namespace lockstep::transport::ucx {
namespace {

constexpr std::size_t kPrefixBytes = 16;
constexpr std::size_t kHandshakeBytes = kPrefixBytes + 8;
constexpr std::size_t kFetchBytes = kPrefixBytes + 8 + 40;
constexpr std::size_t kPieceBytes = kPrefixBytes + 16;
static_assert(kFetchBytes <= kMaxHeaderBytes && kPieceBytes <= kMaxHeaderBytes);

class Writer {
 public:
  Writer(Frame frame, std::uint64_t to, std::uint16_t status = 0, std::uint32_t sequence = 0) {
    Put(kWireVersion);
    Put(static_cast<std::uint8_t>(frame));
    Put(status);
    Put(sequence);
    Put(to);
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
  bool plain() const { return status == 0 && sequence == 0; }
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
  static_cast<void>(reader.Get<std::uint64_t>());  // to
  return prefix;
}

}  // namespace

HeaderBytes EncodeHandshake(std::uint64_t to, std::uint64_t from) {
  Writer writer(Frame::kHandshake, to);
  writer.Put(from);
  return writer.header();
}

HeaderBytes EncodeMessage(std::uint64_t to, std::uint32_t sequence) {
  return Writer(Frame::kMessage, to, 0, sequence).header();
}

HeaderBytes EncodeGoodbye(std::uint64_t to) { return Writer(Frame::kGoodbye, to).header(); }

HeaderBytes EncodePing(std::uint64_t to) { return Writer(Frame::kPing, to).header(); }

HeaderBytes EncodeFetch(std::uint64_t to, const FetchHeader& fetch) {
  Writer writer(Frame::kFetch, to);
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

HeaderBytes EncodePiece(std::uint64_t to, const PieceHeader& piece) {
  Writer writer(Frame::kPiece, to, static_cast<std::uint16_t>(piece.status));
  writer.Put(piece.fetch);
  writer.Put(piece.bytes);
  return writer.header();
}

std::vector<std::byte> EncodeIntroduction(const Introduction& introduction,
                                          std::span<const std::byte> handshake) {
  std::vector<std::byte> body;
  const auto put = [&body](std::uint32_t value) {
    for (int i = 0; i < 4; ++i) body.push_back(static_cast<std::byte>((value >> (8 * i)) & 0xff));
  };
  put(introduction.endpoints);
  put(static_cast<std::uint32_t>(introduction.address.size()));
  const auto address = std::as_bytes(std::span(introduction.address));
  body.insert(body.end(), address.begin(), address.end());
  body.insert(body.end(), handshake.begin(), handshake.end());
  return body;
}

std::optional<std::uint64_t> DecodeTo(std::span<const std::byte> header) {
  if (header.size() < kPrefixBytes) return std::nullopt;
  if (Reader(header).Get<std::uint8_t>() != kWireVersion) return std::nullopt;
  return Reader(header.subspan(kPrefixBytes - 8)).Get<std::uint64_t>();
}

std::optional<std::uint64_t> DecodeHandshake(std::span<const std::byte> header) {
  Reader reader(header);
  const auto prefix = ReadPrefix(header, Frame::kHandshake, kHandshakeBytes, reader);
  if (!prefix || !prefix->plain()) return std::nullopt;
  const auto from = reader.Get<std::uint64_t>();
  return from == 0 ? std::nullopt : std::optional(from);
}

bool IsGoodbye(std::span<const std::byte> header) {
  Reader reader(header);
  const auto prefix = ReadPrefix(header, Frame::kGoodbye, kPrefixBytes, reader);
  return prefix && prefix->plain();
}

std::optional<Introduction> DecodeIntroduction(std::span<const std::byte>& body) {
  if (body.size() < 8) return std::nullopt;
  Reader reader(body);
  Introduction introduction;
  introduction.endpoints = reader.Get<std::uint32_t>();
  const std::size_t length = reader.Get<std::uint32_t>();
  body = body.subspan(8);
  if (length > body.size()) return std::nullopt;
  introduction.address.assign(reinterpret_cast<const char*>(body.data()), length);
  body = body.subspan(length);
  return introduction;
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
  if (!prefix || !prefix->plain()) return std::nullopt;
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
