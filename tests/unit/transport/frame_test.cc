#include "transport/tcp/frame.h"

#include <gtest/gtest.h>
#include <algorithm>

#include "tests/property_check.h"

namespace lockstep::transport::tcp {
namespace {

TEST(FrameTest, HeadersOfAllTypesComeBackAsTheyWere) {
  const FrameHeader headers[] = {{FrameType::kHandshake, 72, 0},
                                 {FrameType::kSettings, 0, 8},
                                 {FrameType::kSettings, kConnectionPlaceBytes, 8},
                                 {FrameType::kMessage, 0, 0},
                                 {FrameType::kMessage, kMaxMessageBytes, 0},
                                 {FrameType::kFetch, kPieceNameBytes, 1},
                                 {FrameType::kCancel, 0, ~std::uint64_t{0}},
                                 {FrameType::kPiece, kMaxPieceBytes, 3},
                                 {FrameType::kGone, 0, 4},
                                 {FrameType::kBegin, 0, 0}};
  for (const FrameHeader& header : headers) {
    const auto decoded = DecodeHeader(EncodeHeader(header));
    ASSERT_TRUE(decoded.ok()) << decoded.error().message;
    EXPECT_EQ(decoded->type, header.type);
    EXPECT_EQ(decoded->bytes, header.bytes);
    EXPECT_EQ(decoded->id, header.id);
  }
}

TEST(FrameTest, TheBytesAreLittleEndianAndInTheDocumentedPlaces) {
  const auto bytes = EncodeHeader({FrameType::kPiece, 0x01020304, 0x1122334455667788});
  const unsigned char wanted[] = {4,    3,    2,    1,    6,    0,    0,    0,
                                  0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11};
  EXPECT_TRUE(std::ranges::equal(bytes, std::as_bytes(std::span(wanted))));
}

TEST(FrameTest, LengthsThatATypeDoesNotAllowAreRefused) {
  const FrameHeader headers[] = {{FrameType::kHandshake, 0, 0},
                                 {FrameType::kHandshake, 257, 0},
                                 {FrameType::kSettings, 1, 8},
                                 {FrameType::kSettings, kConnectionPlaceBytes - 1, 8},
                                 {FrameType::kSettings, kConnectionPlaceBytes + 1, 8},
                                 {FrameType::kSettings, 0, 0},
                                 {FrameType::kSettings, 0, kMaxWindow + 1},
                                 {FrameType::kMessage, kMaxMessageBytes + 1, 0},
                                 {FrameType::kFetch, kPieceNameBytes - 1, 0},
                                 {FrameType::kFetch, kPieceNameBytes + 1, 0},
                                 {FrameType::kCancel, 1, 0},
                                 {FrameType::kPiece, kMaxPieceBytes + 1, 0},
                                 {FrameType::kPiece, 0xffffffff, 0},
                                 {FrameType::kGone, 1, 0},
                                 {FrameType::kBegin, 1, 0}};
  for (const FrameHeader& header : headers) {
    EXPECT_FALSE(DecodeHeader(EncodeHeader(header)).ok())
        << static_cast<int>(header.type) << " " << header.bytes;
  }
}

TEST(FrameTest, UnknownTypesAndFilledGapsAreRefused) {
  for (const int type : {0, 9, 255}) {
    EXPECT_FALSE(DecodeHeader(EncodeHeader({static_cast<FrameType>(type), 0, 0})).ok()) << type;
  }
  for (const std::size_t gap : {5u, 6u, 7u}) {
    auto bytes = EncodeHeader({FrameType::kGone, 0, 1});
    bytes[gap] = std::byte{1};
    EXPECT_FALSE(DecodeHeader(bytes).ok());
  }
}

TEST(FrameTest, PieceNamesComeBackAsTheyWere) {
  ExpectHolds("names come back", [](std::uint32_t kind, std::uint32_t attempt, std::uint64_t round,
                                    std::uint32_t owner, std::uint32_t part, std::uint64_t offset) {
    const auto bytes = *rc::gen::inRange<std::uint64_t>(0, kMaxPieceBytes + 1);
    const PieceName name{kind, attempt, round, owner, part, offset, bytes};
    const auto decoded = DecodePieceName(EncodePieceName(name));
    RC_ASSERT(decoded.ok());
    RC_ASSERT(*decoded == name);
  });
}

TEST(FrameTest, PlacesOfConnectionsComeBackAsTheyWere) {
  ConnectionPlace place{.connections = kMaxConnections, .number = kMaxConnections - 1};
  for (std::size_t i = 0; i < place.group.size(); ++i)
    place.group[i] = static_cast<std::byte>(i + 1);
  const auto bytes = EncodeConnectionPlace(place);
  const auto decoded = DecodeConnectionPlace(bytes);
  ASSERT_TRUE(decoded.ok()) << decoded.error().message;
  EXPECT_EQ(*decoded, place);
  const unsigned char wanted[] = {16, 0, 0, 0, 15, 0, 0, 0};
  EXPECT_TRUE(std::ranges::equal(std::span(bytes).first(8), std::as_bytes(std::span(wanted))));
  EXPECT_EQ(bytes[8], std::byte{1});
  EXPECT_EQ(bytes[23], std::byte{16});
  EXPECT_EQ(*DecodeConnectionPlace({}), ConnectionPlace());
}

TEST(FrameTest, PlacesThatThereAreNotAreRefused) {
  for (const ConnectionPlace& place :
       {ConnectionPlace{.connections = 0}, ConnectionPlace{.connections = 1},
        ConnectionPlace{.connections = kMaxConnections + 1},
        ConnectionPlace{.connections = 4, .number = 4},
        ConnectionPlace{.connections = 0xffffffff, .number = 0xffffffff}}) {
    EXPECT_FALSE(DecodeConnectionPlace(EncodeConnectionPlace(place)).ok())
        << place.number << " of " << place.connections;
  }
}

TEST(FrameTest, AFetchLongerThanAPieceIsRefused) {
  PieceName name;
  name.bytes = kMaxPieceBytes + 1;
  EXPECT_FALSE(DecodePieceName(EncodePieceName(name)).ok());
  name.bytes = ~std::uint64_t{0};
  EXPECT_FALSE(DecodePieceName(EncodePieceName(name)).ok());
}

}  // namespace
}  // namespace lockstep::transport::tcp
