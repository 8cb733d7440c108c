#include "transport/tcp/outbox.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

namespace lockstep::transport::tcp {
namespace {

using Stream = std::vector<std::byte>;

std::span<const std::byte> Text(std::string_view text) { return std::as_bytes(std::span(text)); }

// "Writes" up to `limit` bytes; returns the answer that this completes.
std::optional<Outbox::Answer> Write(Outbox& outbox, Stream& stream, std::size_t limit) {
  std::array<iovec, Outbox::kMaxVectors> vectors{};
  const std::size_t count = outbox.Gather(vectors);
  std::size_t written = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const auto* bytes = static_cast<const std::byte*>(vectors[i].iov_base);
    const std::size_t part = std::min(vectors[i].iov_len, limit - written);
    stream.insert(stream.end(), bytes, bytes + part);
    written += part;
  }
  return outbox.Wrote(written);
}

// The types of the frames in a stream, as letters.
std::string Order(const Stream& stream) {
  std::string order;
  for (std::size_t at = 0; at < stream.size();) {
    const auto header =
        DecodeHeader(std::span<const std::byte, kHeaderBytes>(&stream[at], kHeaderBytes));
    EXPECT_TRUE(header.ok());
    order += header->type == FrameType::kMessage ? 'm'
             : header->type == FrameType::kPiece ? 'P'
                                                 : 'g';
    at += kHeaderBytes + header->bytes;
  }
  return order;
}

TEST(OutboxTest, ASmallMessageWaitsForAtMostOnePiece) {
  const Stream body(1000);
  Outbox outbox;
  Stream stream;
  for (std::uint64_t i = 0; i < 4; ++i) outbox.PushAnswer({.id = i, .have = true, .body = body});
  Write(outbox, stream, 500);
  outbox.PushSmall(FrameType::kMessage, 0, Text("now"));
  while (outbox.answers() > 0 || outbox.small_bytes() > 0) Write(outbox, stream, 300);
  EXPECT_EQ(Order(stream), "PmPPP");
}

TEST(OutboxTest, ASmallMessageWaitsForAtMostOneFrameOfAPieceThatIsCut) {
  Stream body(1000);
  for (std::size_t i = 0; i < body.size(); ++i) body[i] = static_cast<std::byte>(i * 7);
  for (const std::size_t limit : {1, 7, 16, 100, 250, 266, 300, 5000}) {
    Outbox outbox;
    outbox.CutPieces(250);
    Stream stream;
    for (std::uint64_t i = 0; i < 2; ++i) outbox.PushAnswer({.id = i, .have = true, .body = body});
    Write(outbox, stream, 300);  // one frame, and something of the second
    outbox.PushSmall(FrameType::kMessage, 0, Text("now"));
    while (outbox.answers() > 0 || outbox.small_bytes() > 0) Write(outbox, stream, limit);
    EXPECT_EQ(Order(stream), "PPmPPPPPP") << "at most " << limit << " bytes at once";
    Stream pieces;
    for (std::size_t at = 0; at < stream.size();) {
      const auto header =
          *DecodeHeader(std::span<const std::byte, kHeaderBytes>(&stream[at], kHeaderBytes));
      at += kHeaderBytes;
      if (header.type == FrameType::kPiece) {
        pieces.insert(pieces.end(), &stream[at], &stream[at] + header.bytes);
      }
      at += header.bytes;
    }
    ASSERT_EQ(pieces.size(), 2 * body.size());
    EXPECT_TRUE(std::ranges::equal(std::span(pieces).first(1000), body));
    EXPECT_TRUE(std::ranges::equal(std::span(pieces).last(1000), body));
  }
}

TEST(OutboxTest, SeveralFramesOfAPieceAreWrittenAtOnce) {
  const Stream body(Outbox::kFramesAtOnce * 250 + 1);
  Outbox outbox;
  outbox.CutPieces(250);
  Stream stream;
  outbox.PushAnswer({.id = 1, .have = true, .body = body});
  EXPECT_EQ(Write(outbox, stream, 1u << 20), std::nullopt);
  EXPECT_EQ(stream.size(), Outbox::kFramesAtOnce * (kHeaderBytes + 250));
  EXPECT_TRUE(Write(outbox, stream, 1u << 20).has_value());
  EXPECT_EQ(Order(stream), "PPPPP");
}

TEST(OutboxTest, APieceThatIsCutIsNotCancelledBetweenItsFrames) {
  const Stream body(1000);
  Outbox outbox;
  outbox.CutPieces(250);
  Stream stream;
  outbox.PushAnswer({.id = 1, .have = true, .body = body, .cookie = 5});
  Write(outbox, stream, kHeaderBytes + 250);
  EXPECT_EQ(outbox.Cancel(1), std::nullopt);
  while (outbox.answers() > 0) Write(outbox, stream, 1u << 20);
  EXPECT_EQ(Order(stream), "PPPP");
}

TEST(OutboxTest, NothingIsAPieceOfOneFrameWhateverItIsCutTo) {
  Outbox outbox;
  outbox.CutPieces(250);
  Stream stream;
  outbox.PushAnswer({.id = 1, .have = true});
  EXPECT_TRUE(Write(outbox, stream, 1u << 20).has_value());
  EXPECT_EQ(Order(stream), "P");
}

TEST(OutboxTest, AStreamOfMessagesDoesNotStarveAPiece) {
  const Stream body(1000);
  Outbox outbox;
  Stream stream;
  outbox.PushAnswer({.id = 1, .have = true, .body = body});
  int rounds = 0;
  for (; outbox.answers() > 0 && rounds < 10; ++rounds) {
    outbox.PushSmall(FrameType::kMessage, 0, Text("always one more"));
    Write(outbox, stream, 1u << 20);
  }
  EXPECT_LE(rounds, 2);
}

TEST(OutboxTest, WhatIsGoneDoesNotWaitBehindPieces) {
  const Stream body(1000);
  Outbox outbox;
  Stream stream;
  for (std::uint64_t i = 0; i < 2; ++i) outbox.PushAnswer({.id = i, .have = true, .body = body});
  outbox.PushAnswer({.id = 9});
  while (outbox.answers() > 0) Write(outbox, stream, 1u << 20);
  EXPECT_EQ(Order(stream), "gPP");
}

TEST(OutboxTest, BodiesAreWrittenFromWhereTheyLieAndCompletedOnce) {
  Stream body(100000);
  for (std::size_t i = 0; i < body.size(); ++i) body[i] = static_cast<std::byte>(i * 13);
  Outbox outbox;
  Stream stream;
  outbox.PushAnswer({.id = 3, .have = true, .body = body, .cookie = 77});
  std::array<iovec, Outbox::kMaxVectors> vectors{};
  ASSERT_EQ(outbox.Gather(vectors), 2u);
  EXPECT_EQ(vectors[1].iov_base, body.data());
  int completed = 0;
  while (outbox.answers() > 0) {
    if (const auto done = Write(outbox, stream, 777)) {
      ++completed;
      EXPECT_EQ(done->cookie, 77u);
    }
  }
  EXPECT_EQ(completed, 1);
  EXPECT_TRUE(std::ranges::equal(std::span(stream).subspan(kHeaderBytes), body));
}

TEST(OutboxTest, AnAnswerIsCancelledUntilItsFirstByteIsWritten) {
  const Stream body(1000);
  Outbox outbox;
  Stream stream;
  for (std::uint64_t i = 0; i < 3; ++i) {
    outbox.PushAnswer({.id = i, .have = true, .body = body, .cookie = 10 + i});
  }
  std::array<iovec, Outbox::kMaxVectors> vectors{};
  outbox.Gather(vectors);
  EXPECT_EQ(outbox.Cancel(0), 10u) << "chosen, but nothing of it is written";
  EXPECT_EQ(outbox.Cancel(0), std::nullopt);
  Write(outbox, stream, kHeaderBytes);
  Write(outbox, stream, 20);
  EXPECT_EQ(outbox.Cancel(1), std::nullopt) << "it has begun";
  EXPECT_EQ(outbox.Cancel(2), 12u);
  EXPECT_EQ(outbox.Cancel(55), std::nullopt);
  while (outbox.answers() > 0) Write(outbox, stream, 1u << 20);
  EXPECT_EQ(Order(stream), "gPg");
}

TEST(OutboxTest, WithdrawGivesBackWhatIsNotComplete) {
  const Stream body(1000);
  Outbox outbox;
  Stream stream;
  for (std::uint64_t i = 0; i < 3; ++i) {
    outbox.PushAnswer({.id = i, .have = true, .body = body, .cookie = i});
  }
  Write(outbox, stream, 100);
  EXPECT_EQ(outbox.Withdraw().size(), 3u);
  EXPECT_EQ(outbox.answers(), 0u);
}

}  // namespace
}  // namespace lockstep::transport::tcp
