#include "worker/core/peer_messages.h"

#include <gtest/gtest.h>

#include "base/random.h"

namespace lockstep::worker {
namespace {

std::vector<PeerMessage> Samples() {
  PartReady part{RoundId(7), PartIndex(1), 9, 3, 12, true, Attempt(2), {{{100, 2}, {300, 1}}}};
  SumReady sum;
  sum.term = Term(2);
  sum.round = RoundId(1ull << 40);
  sum.attempt = Attempt(3);
  sum.map_version = 4;
  sum.buffer = 2;
  sum.generation = 77;
  SumReady passed = sum;
  passed.passed = PassedOn{1, true, 12};
  return {part,
          sum,
          passed,
          SumWant{Term(1), RoundId(5), Attempt(2)},
          MapState{true},
          StateWant{3, 99},
          StateReady{3, 100, Attempt(2), 8, 1, false},
          StateTaken{8},
          Alive{},
          ParametersReady{std::uint64_t{1} << 40, Attempt(2), 3, 9, {0, 5, 7}}};
}

std::vector<std::byte> Encode(const PeerMessage& message) {
  std::vector<std::byte> bytes = EncodePeerMessage(message);
  if (const auto* part = std::get_if<PartReady>(&message)) {
    bytes.resize(bytes.size() + part->inlined.Floats() * sizeof(float), std::byte{0x42});
  }
  return bytes;
}

TEST(PeerMessages, ComeBackAsTheyWere) {
  for (const PeerMessage& message : Samples()) {
    const std::vector<std::byte> bytes = Encode(message);
    const auto decoded = DecodePeerMessage(bytes);
    ASSERT_TRUE(decoded.ok()) << decoded.error().message;
    EXPECT_TRUE(decoded->message == message) << "kind " << message.index();
    if (message.index() == 0) {
      ASSERT_EQ(decoded->floats.size(), 12u);
      EXPECT_EQ(decoded->floats[0], std::byte{0x42});
    }
  }
}

TEST(PeerMessages, EveryOtherLengthIsRefused) {
  for (const PeerMessage& message : Samples()) {
    std::vector<std::byte> bytes = Encode(message);
    for (std::size_t n = 0; n < bytes.size(); ++n) {
      EXPECT_FALSE(DecodePeerMessage(std::span(bytes).first(n)).ok())
          << "kind " << message.index() << " cut to " << n;
    }
    bytes.push_back(std::byte{0});
    EXPECT_FALSE(DecodePeerMessage(bytes).ok()) << "kind " << message.index();
  }
}

TEST(PeerMessages, HugeCountsAreRefused) {
  PartReady part;
  part.inlined.ranges = {{0, ~std::uint64_t{0} / 2}, {0, ~std::uint64_t{0} / 2 + 3}};
  std::vector<std::byte> bytes = EncodePeerMessage(part);
  bytes.resize(bytes.size() + 8);
  EXPECT_FALSE(DecodePeerMessage(bytes).ok());
}

TEST(PeerMessages, AsManyBytesRideAlongAsTheJobsNumbersTake) {
  SumReady sums;
  sums.inlined.ranges = {{0, 3}, {1024, 4}};
  std::vector<std::byte> bytes = EncodePeerMessage(sums);
  const std::size_t bare = bytes.size();
  bytes.resize(bare + 7 * 2);
  const auto decoded = DecodePeerMessage(bytes, 2);
  ASSERT_TRUE(decoded.ok());
  EXPECT_EQ(decoded->floats.size(), 7u * 2);
  EXPECT_FALSE(DecodePeerMessage(bytes, 4).ok());
  bytes.resize(bare + 7 * 4);
  EXPECT_FALSE(DecodePeerMessage(bytes, 2).ok());
  EXPECT_TRUE(DecodePeerMessage(bytes, 4).ok());
}

TEST(PeerMessages, RandomBytesDoNoHarm) {
  const auto samples = Samples();
  RandomStream random(3);
  for (int i = 0; i < 200000; ++i) {
    std::vector<std::byte> bytes;
    if (random.NextBelow(2) == 0) {
      bytes = Encode(samples[random.NextBelow(samples.size())]);
      for (std::uint64_t flips = 1 + random.NextBelow(4); flips > 0; --flips) {
        bytes[random.NextBelow(bytes.size())] = std::byte(random.NextBelow(256));
      }
      bytes.resize(random.NextBelow(bytes.size() + 1));
    } else {
      bytes.resize(random.NextBelow(80));
      for (std::byte& b : bytes) b = std::byte(random.NextBelow(256));
    }
    const auto decoded = DecodePeerMessage(bytes);
    if (!decoded.ok()) continue;
    EXPECT_EQ(EncodePeerMessage(decoded->message).size() + decoded->floats.size(), bytes.size());
  }
}

}  // namespace
}  // namespace lockstep::worker
