#include "base/digest.h"

#include <gtest/gtest.h>

#include <bit>
#include <cstdint>
#include <set>
#include <vector>

#include "worker/memory/sha256.h"

namespace lockstep::worker {
namespace {

std::vector<float> Ramp(std::size_t n) {
  std::vector<float> values(n);
  for (std::size_t i = 0; i < n; ++i) values[i] = 0.25f * static_cast<float>(i) - 3.0f;
  return values;
}

TEST(Digest, IsTheOneThatWasDefined) {
  // From an implementation of its definition in another language.
  EXPECT_EQ(DigestOf({}), (Digest128{0x8d706c9e9e5f3409, 0x410215913067a3a2}));
  EXPECT_EQ(DigestOf(std::vector<float>{1.0f}),
            (Digest128{0xb6679493fee7ff87, 0x1f2bfecb8af873bc}));
  EXPECT_EQ(DigestOf(Ramp(37)), (Digest128{0xd580d8c79e713a98, 0x6883f9c163bb9b77}));
}

TEST(Digest, EachBitCounts) {
  for (const std::size_t n : {1u, 2u, 16u, 37u}) {
    auto values = Ramp(n);
    std::set<Digest128> seen = {DigestOf(values)};
    for (float& value : values) {
      for (int bit = 0; bit < 32; ++bit) {
        const float before = value;
        value = std::bit_cast<float>(std::bit_cast<std::uint32_t>(value) ^ (1u << bit));
        EXPECT_TRUE(seen.insert(DigestOf(values)).second);
        value = before;
      }
    }
  }
}

TEST(Digest, LengthAndPlaceCount) {
  std::set<Digest128> seen;
  for (std::size_t n = 0; n < 100; ++n) {
    EXPECT_TRUE(seen.insert(DigestOf(std::vector<float>(n, 0.0f))).second) << n;
  }
  for (std::size_t i = 0; i < 100; ++i) {
    std::vector<float> values(100, 0.0f);
    values[i] = 1.0f;
    EXPECT_TRUE(seen.insert(DigestOf(values)).second) << i;
  }
  EXPECT_NE(DigestOf(std::vector<float>{-0.0f}), DigestOf(std::vector<float>{0.0f}));
}

TEST(Digest, AlignmentDoesNotCount) {
  const auto values = Ramp(50);
  std::vector<float> shifted(51);
  std::copy(values.begin(), values.end(), shifted.begin() + 1);
  EXPECT_EQ(DigestOf(std::span(shifted).subspan(1)), DigestOf(values));
}

TEST(Digest, PiecesMayEndAnywhere) {
  for (const std::size_t n : {0u, 1u, 15u, 16u, 17u, 100u}) {
    const auto values = Ramp(n);
    const auto bytes = std::as_bytes(std::span(values));
    for (const std::size_t piece : {1u, 3u, 4u, 63u, 64u, 65u, 1000u}) {
      DigestStream stream;
      for (std::size_t at = 0; at < bytes.size(); at += piece) {
        stream.Update(bytes.subspan(at, std::min(piece, bytes.size() - at)));
      }
      EXPECT_EQ(stream.Digest(), DigestOf(values)) << n << " values in pieces of " << piece;
    }
  }
}

TEST(Digest, HasAFormOfText) {
  const Digest128 digest = DigestOf(Ramp(37));
  EXPECT_EQ(ToString(digest), "6883f9c163bb9b77d580d8c79e713a98");
  EXPECT_EQ(DigestFromString(ToString(digest)), digest);
  EXPECT_FALSE(DigestFromString("6883f9c163bb9b77d580d8c79e713a9"));
  EXPECT_FALSE(DigestFromString("6883f9c163bb9b77d580d8c79e713a9x"));
  EXPECT_FALSE(DigestFromString(""));
}

TEST(Sha256, KnownValues) {
  Sha256 empty;
  EXPECT_EQ(empty.FinishHex(), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  const auto values = Ramp(37);
  Sha256 pieces;
  pieces.Update(std::span(values).first(5));
  pieces.Update(std::as_bytes(std::span(values).subspan(5, 20)));
  pieces.Update(std::span(values).subspan(25));
  EXPECT_EQ(pieces.FinishHex(), "9f23e88a7f24a137b06681a9b8e42081df970b151e39b0ab4efa034801ac2553");
}

}  // namespace
}  // namespace lockstep::worker
