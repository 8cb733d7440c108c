// The TCP transport against peers that do not keep to the protocol, over real sockets.
#include <random>

#include "tests/unit/transport/hostile_fixture.h"

namespace lockstep::transport::tcp {
namespace {

// Once as it is, once in TLS with members that have the key.
class HostileTest : public HostileFixture, public ::testing::WithParamInterface<bool> {
 protected:
  HostileTest() : HostileFixture(GetParam()) {}
};

TEST_P(HostileTest, GarbageInsteadOfAGreetingEndsTheConnection) {
  std::mt19937 random(1);
  for (int i = 0; i < 50; ++i) {
    const auto peer = MakePeer();
    std::vector<std::byte> garbage(random() % 3000 + 16);
    for (auto& b : garbage) b = static_cast<std::byte>(random());
    peer->Write(garbage);
    EXPECT_TRUE(peer->AwaitEnd());
  }
}

TEST_P(HostileTest, NothingIsAcceptedBeforeTheHandshakeIsOver) {
  for (const FrameType type : {FrameType::kMessage, FrameType::kSettings, FrameType::kFetch,
                               FrameType::kCancel, FrameType::kPiece, FrameType::kGone}) {
    const auto peer = MakePeer();
    const std::vector<std::byte> body(type == FrameType::kFetch ? kPieceNameBytes : 0);
    peer->WriteFrame(type, 1, body);
    EXPECT_TRUE(peer->AwaitEnd());
  }
  EXPECT_EQ(serves_, 0u);
}

TEST_P(HostileTest, SilentStrangersDoNotKeepMembersOut) {
  std::vector<std::unique_ptr<RawPeer>> silent;
  for (int i = 0; i < 300; ++i) silent.push_back(std::make_unique<RawPeer>(transport_->address()));
  // The oldest have been pushed out, long before any time-out.
  EXPECT_TRUE(silent.front()->AwaitEnd());
}

TEST_P(HostileTest, ManyStrangersOfOneAddressPushNobodyElseOut) {
  const auto member = MakePeer();
  std::vector<std::unique_ptr<RawPeer>> silent;
  for (int i = 0; i < 300; ++i) {
    silent.push_back(std::make_unique<RawPeer>(transport_->address(), "127.0.0.2"));
  }
  EXPECT_TRUE(silent.front()->AwaitEnd());
  member->GreetAndSettle();
  PieceName name;
  name.bytes = 100;
  member->WriteFrame(FrameType::kFetch, 1, EncodePieceName(name));
  EXPECT_TRUE(member->ReadFrame().has_value());
}

class LargeJobTest : public HostileFixture, public ::testing::WithParamInterface<bool> {
 protected:
  LargeJobTest() : HostileFixture(GetParam(), 1, /*members=*/200) {}
};

INSTANTIATE_TEST_SUITE_P(Encryption, LargeJobTest, ::testing::Bool());

// All of them connect before the first has said anything.
TEST_P(LargeJobTest, MembersPushEachOtherOutOfNoPlace) {
  std::vector<std::unique_ptr<RawPeer>> members;
  for (int i = 0; i < 200; ++i) members.push_back(MakePeer());
  for (int i : {0, 100, 199}) members[static_cast<std::size_t>(i)]->GreetAndSettle();
}

TEST_P(HostileTest, SettingsComeFirstAndOnce) {
  const auto early = MakePeer();
  early->Greet();
  early->WriteFrame(FrameType::kMessage, 0, {});
  EXPECT_TRUE(early->AwaitEnd());
  EXPECT_NE(AwaitDown().message.find("protocol error"), std::string::npos);
  const auto twice = MakePeer();
  twice->GreetAndSettle();
  twice->WriteFrame(FrameType::kSettings, kWindow, {});
  EXPECT_TRUE(twice->AwaitEnd());
}

TEST_P(HostileTest, MoreFetchesThanTheWindowEndTheConnection) {
  const auto peer = MakePeer();
  peer->GreetAndSettle();
  PieceName name;
  name.bytes = kMaxPieceBytes;
  for (std::uint64_t i = 0; i < 1000; ++i) {
    peer->WriteFrame(FrameType::kFetch, i, EncodePieceName(name));
  }
  EXPECT_NE(AwaitDown().message.find("window"), std::string::npos);
  const std::lock_guard lock(mutex_);
  EXPECT_LT(serves_, 100u);
}

TEST_P(HostileTest, AFetchLongerThanAPieceIsNotAskedOfTheHandler) {
  const auto peer = MakePeer();
  peer->GreetAndSettle();
  PieceName name;
  name.bytes = kMaxPieceBytes + 1;
  peer->WriteFrame(FrameType::kFetch, 1, EncodePieceName(name));
  EXPECT_TRUE(peer->AwaitEnd());
  EXPECT_EQ(serves_, 0u);
}

TEST_P(HostileTest, AnswersToNoQuestionEndTheConnection) {
  for (const FrameType type : {FrameType::kPiece, FrameType::kGone}) {
    const auto peer = MakePeer();
    peer->GreetAndSettle();
    peer->WriteFrame(type, 12, {});
    EXPECT_TRUE(peer->AwaitEnd());
  }
}

TEST_P(HostileTest, ACancelOfWhatWasNotAskedForIsHarmless) {
  const auto peer = MakePeer();
  peer->GreetAndSettle();
  for (std::uint64_t i = 0; i < 100; ++i) peer->WriteFrame(FrameType::kCancel, i, {});
  PieceName name;
  name.bytes = 100;
  peer->WriteFrame(FrameType::kFetch, 1, EncodePieceName(name));
  const auto piece = peer->ReadFrame();
  ASSERT_TRUE(piece.has_value());
  EXPECT_EQ(piece->size(), 100u);
}

TEST_P(HostileTest, RandomFramesOfAMemberEndTheConnectionAtWorst) {
  std::mt19937 random(7);
  for (int i = 0; i < 200; ++i) {
    const auto peer = MakePeer();
    peer->GreetAndSettle();
    for (int k = 0; k < 20; ++k) {
      std::vector<std::byte> body(random() % 4 == 0 ? kPieceNameBytes : random() % 100);
      for (auto& b : body) b = static_cast<std::byte>(random() % 3 == 0 ? random() : 0);
      peer->WriteFrame(static_cast<FrameType>(random() % 9), random() % 5, body);
    }
  }
  // They were members, and some of what they said was an error; who serves on is seen in TearDown.
  EXPECT_NE(AwaitDown().message, "");
  const std::lock_guard lock(mutex_);
  EXPECT_GT(ups_, 0u);
}

INSTANTIATE_TEST_SUITE_P(Streams, HostileTest, ::testing::Bool(),
                         [](const auto& tested) { return tested.param ? "tls" : "plain"; });

}  // namespace
}  // namespace lockstep::transport::tcp
