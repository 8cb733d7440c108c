#include "transport/tcp/inbox.h"

#include <gtest/gtest.h>
#include <cstring>
#include <string>

#include "tests/property_check.h"

namespace lockstep::transport::tcp {
namespace {

using Stream = std::vector<std::byte>;

void Append(Stream& stream, FrameType type, std::uint64_t id, std::span<const std::byte> body) {
  const auto header = EncodeHeader({type, static_cast<std::uint32_t>(body.size()), id});
  stream.insert(stream.end(), header.begin(), header.end());
  stream.insert(stream.end(), body.begin(), body.end());
}

// Hands at most `limit` bytes of the stream to the inbox, where it wants them.
std::size_t Feed(Inbox& inbox, std::span<const std::byte> stream, std::size_t limit, bool bulk) {
  std::array<iovec, Inbox::kMaxVectors> vectors{};
  const std::size_t count = inbox.Space(vectors, bulk);
  std::size_t given = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t part = std::min({vectors[i].iov_len, stream.size() - given, limit - given});
    if (part > 0) std::memcpy(vectors[i].iov_base, stream.data() + given, part);
    given += part;
  }
  inbox.Filled(given);
  return given;
}

TEST(InboxTest, FramesAreTheSameHoweverTheStreamIsCut) {
  ExpectHolds("the frames of a stream", [](bool bulk) {
    // The stream: messages and pieces in any order; every third piece is unwanted, every fourth
    // given up half-way.
    struct Sent {
      bool piece;
      Stream body;
    };
    std::vector<Sent> sent;
    Stream stream;
    const auto frames = *rc::gen::inRange<std::size_t>(1, 20);
    for (std::size_t i = 0; i < frames; ++i) {
      const bool piece = *rc::gen::arbitrary<bool>();
      const auto bytes = *rc::gen::elementOf(
          std::vector<std::size_t>{0, 1, 15, 16, 17, 2047, 2048, 2049, 30000, kMaxMessageBytes});
      Stream body(bytes);
      for (std::size_t k = 0; k < bytes; ++k) body[k] = static_cast<std::byte>(k * 7 + i);
      Append(stream, piece ? FrameType::kPiece : FrameType::kMessage, i, body);
      sent.push_back({piece, body});
    }
    Stream scratch(1000);
    Stream destination(kMaxMessageBytes);
    Inbox inbox(scratch);
    inbox.Grow();
    std::size_t at = 0;
    std::size_t seen = 0;
    while (seen < sent.size()) {
      const auto limit = *rc::gen::elementOf(std::vector<std::size_t>{1, 16, 100, 5000, 1u << 20});
      at += Feed(inbox, std::span(stream).subspan(at), limit, bulk);
      if (seen % 4 == 3 && inbox.InBodyOf(seen)) inbox.DropDestination();
      for (bool more = true; more;) {
        const auto event = inbox.Next();
        RC_ASSERT(event.ok());
        const auto finish = [&] {
          RC_ASSERT(inbox.header().id == seen);
          ++seen;
        };
        switch (*event) {
          case Inbox::Event::kNone:
            more = false;
            break;
          case Inbox::Event::kFrame:
            RC_ASSERT(inbox.header().bytes == sent[seen].body.size());
            if (!sent[seen].piece) {
              RC_ASSERT(std::ranges::equal(inbox.body(), sent[seen].body));
              finish();
            } else if (seen % 3 == 2) {
              inbox.ReadBodyAway();
            } else {
              inbox.ReadBodyInto(std::span(destination).first(sent[seen].body.size()));
            }
            break;
          case Inbox::Event::kPieceDone:
            if (seen % 3 != 2 && seen % 4 != 3) {
              RC_ASSERT(std::ranges::equal(std::span(destination).first(sent[seen].body.size()),
                                           sent[seen].body));
            }
            finish();
            break;
        }
      }
    }
    RC_ASSERT(at == stream.size());
  });
}

TEST(InboxTest, BytesOfStrangersAreFramesOrErrorsNeverACrash) {
  std::size_t frames = 0;
  std::size_t refused = 0;
  ExpectHolds(
      "any bytes", [&](const std::vector<unsigned char>& garbage, bool plausible, bool grown) {
        Stream stream;
        if (plausible) {
          const auto header =
              EncodeHeader({static_cast<FrameType>(*rc::gen::inRange(0, 9)),
                            *rc::gen::arbitrary<std::uint32_t>() >> *rc::gen::inRange(0, 32),
                            *rc::gen::arbitrary<std::uint64_t>()});
          stream.insert(stream.end(), header.begin(), header.end());
        }
        for (const unsigned char c : garbage) stream.push_back(static_cast<std::byte>(c));
        Stream scratch(64);
        Inbox inbox(scratch);
        if (grown) inbox.Grow();
        for (std::size_t at = 0; at < stream.size();) {
          at += Feed(inbox, std::span(stream).subspan(at), 13, false);
          for (bool more = true; more;) {
            const auto event = inbox.Next();
            if (!event) {
              ++refused;
              return;
            }
            frames += *event == Inbox::Event::kFrame ? 1 : 0;
            if (*event == Inbox::Event::kFrame && inbox.header().type == FrameType::kPiece) {
              inbox.ReadBodyAway();
            }
            more = *event != Inbox::Event::kNone;
          }
        }
      });
  EXPECT_GT(frames, 0u) << "whatever it was, nothing was taken for a frame";
  EXPECT_GT(refused, 5u);
}

TEST(InboxTest, AStrangerCannotSendLongFrames) {
  Stream scratch(64);
  Inbox inbox(scratch);
  Stream stream;
  Append(stream, FrameType::kMessage, 0, Stream(kMaxMessageBytes));
  Feed(inbox, stream, 100, false);
  EXPECT_FALSE(inbox.Next().ok());
}

}  // namespace
}  // namespace lockstep::transport::tcp
