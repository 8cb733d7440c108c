// What one TCP connection of a stranger says: the frames are the same however the bytes are cut.
#include "transport/tcp/inbox.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/check.h"
#include "tests/fuzz/target.h"

namespace lockstep::fuzz {
namespace {

using transport::tcp::FrameHeader;
using transport::tcp::FrameType;
using transport::tcp::Inbox;

// What became of a stream, in words that can be compared.
struct Read {
  std::string frames;
  bool refused = false;
};

// Taken means: it can be an index, and is the same when sent on.
void CheckPlace(std::span<const std::byte> body) {
  const auto place = transport::tcp::DecodeConnectionPlace(body);
  if (!place) return;
  LOCKSTEP_CHECK(place->connections <= transport::tcp::kMaxConnections &&
                 place->number < place->connections);
  const auto again = transport::tcp::EncodeConnectionPlace(*place);
  LOCKSTEP_CHECK(body.empty() || std::ranges::equal(again, body));
}

Read ReadStream(Bytes stream, bool grown, std::uint64_t cuts) {
  std::vector<std::byte> scratch(512);
  std::vector<std::byte> destination;
  Inbox inbox(scratch);
  if (grown) inbox.Grow();
  Read read;
  const auto drain = [&] {
    while (true) {
      const auto event = inbox.Next();
      if (!event) {
        LOCKSTEP_CHECK(OneLine(event.error().message), "{}", event.error().message);
        read.refused = true;
        return;
      }
      if (*event == Inbox::Event::kNone) return;
      const FrameHeader header = inbox.header();
      read.frames += fmt::format("{} {} {} {};", static_cast<int>(*event),
                                 static_cast<int>(header.type), header.bytes, header.id);
      if (*event == Inbox::Event::kFrame && header.type == FrameType::kPiece) {
        if (header.bytes <= 4096 && header.id % 2 == 0) {
          destination.assign(header.bytes, std::byte{0});
          inbox.ReadBodyInto(destination);
        } else {
          inbox.ReadBodyAway();
        }
      } else if (*event == Inbox::Event::kFrame) {
        LOCKSTEP_CHECK(inbox.body().size() == header.bytes);
        for (const std::byte byte : inbox.body()) {
          read.frames += static_cast<char>(byte);
        }
        if (header.type == FrameType::kFetch) {
          const auto name = transport::tcp::DecodePieceName(
              inbox.body().first<transport::tcp::kPieceNameBytes>());
          LOCKSTEP_CHECK(!name || name->bytes <= transport::tcp::kMaxPieceBytes);
        }
        if (header.type == FrameType::kSettings) CheckPlace(inbox.body());
      } else if (!destination.empty() && header.id % 2 == 0 && header.bytes <= 4096) {
        read.frames.append(reinterpret_cast<const char*>(destination.data()), destination.size());
      }
    }
  };
  while (!stream.empty() && !read.refused) {
    std::array<iovec, Inbox::kMaxVectors> vectors{};
    const std::size_t count = inbox.Space(vectors, (cuts & 1) != 0);
    LOCKSTEP_CHECK(count > 0);
    std::size_t most =
        cuts == 0 ? stream.size() : 1 + (cuts = cuts * 6364136223846793005u + 1) % 61;
    std::size_t filled = 0;
    for (std::size_t i = 0; i < count && most > 0; ++i) {
      const std::size_t n = std::min({vectors[i].iov_len, most, stream.size()});
      std::memcpy(vectors[i].iov_base, stream.data(), n);
      stream = stream.subspan(n);
      most -= n;
      filled += n;
      if (n < vectors[i].iov_len) break;
    }
    inbox.Filled(filled);
    drain();
  }
  return read;
}

}  // namespace

bool Run(Bytes bytes) {
  Input input(bytes);
  const std::uint8_t how = input.Byte();
  const std::uint64_t cuts = input.Word() | 1u;
  const Bytes stream = input.TakeRest();
  const Read whole = ReadStream(stream, (how & 1) != 0, 0);
  const Read cut = ReadStream(stream, (how & 1) != 0, cuts);
  LOCKSTEP_CHECK(whole.refused == cut.refused && whole.frames == cut.frames,
                 "where the bytes are cut makes a difference");
  return !whole.refused;
}

std::vector<std::string> Seeds() {
  const auto frame = [](FrameType type, std::uint64_t id, const std::string& body) {
    const auto header = transport::tcp::EncodeHeader(
        {.type = type, .bytes = static_cast<std::uint32_t>(body.size()), .id = id});
    return std::string(reinterpret_cast<const char*>(header.data()), header.size()) + body;
  };
  const auto name = transport::tcp::EncodePieceName({.bytes = 100});
  const std::string fetch(reinterpret_cast<const char*>(name.data()), name.size());
  const auto settings = [&](const transport::tcp::ConnectionPlace& place) {
    const auto body = transport::tcp::EncodeConnectionPlace(place);
    return frame(FrameType::kSettings, 8,
                 std::string(reinterpret_cast<const char*>(body.data()), body.size()));
  };
  return {std::string("\0ab", 3) + frame(FrameType::kHandshake, 0, std::string(100, 'h')),
          std::string("\1ab", 3) + frame(FrameType::kSettings, 8, "") +
              frame(FrameType::kMessage, 0, "hello") + frame(FrameType::kFetch, 3, fetch) +
              frame(FrameType::kCancel, 3, "") + frame(FrameType::kPiece, 4, "0123456789") +
              frame(FrameType::kPiece, 5, std::string(700, 'p')) + frame(FrameType::kGone, 6, ""),
          std::string("\1ab", 3) + settings({.connections = 4, .number = 3, .group = {}}) +
              frame(FrameType::kBegin, 0, "") + frame(FrameType::kFetch, 3, fetch)};
}

}  // namespace lockstep::fuzz
