// How pieces travel over TCP: in one frame or in several, and what is said in between. Over real
// sockets, the other end by hand.
#include <algorithm>
#include <string_view>

#include "tests/unit/transport/hostile_fixture.h"

namespace lockstep::transport::tcp {
namespace {

std::span<const std::byte> Text(std::string_view text) { return std::as_bytes(std::span(text)); }

class PiecesTest : public HostileFixture, public ::testing::WithParamInterface<bool> {
 protected:
  PiecesTest() : HostileFixture(GetParam()) {}

  void OnPeerUp(PeerId peer, const MemberId&, const PathReport&) override {
    Change([&] {
      ++ups_;
      peer_ = peer;
    });
  }
  void OnMessage(PeerId peer, std::span<const std::byte> bytes) override {
    HostileFixture::OnMessage(peer, bytes);
    Change([&] { ++messages_; });
  }
  void OnFetchDone(FetchId, FetchStatus status) override {
    Change([&] { done_.push_back(status); });
  }

  template <class Condition>
  void Await(Condition condition) {
    std::unique_lock lock(mutex_);
    ASSERT_TRUE(changed_.wait_for(lock, std::chrono::seconds(30), condition));
  }
  // A peer from this address of the host, whose connection is up.
  std::unique_ptr<RawPeer> MakeMember(const char* from = "127.0.0.1") {
    auto member = MakePeer(from);
    member->GreetAndSettle();
    Await([&] { return ups_ > 0; });
    return member;
  }
  // The transport asks the peer for a piece; returns the number that the peer knows it by.
  std::uint64_t Ask(RawPeer& member, std::size_t bytes) {
    transport_->Post([this, bytes] {
      const RegionId region =
          *transport_->Register(MemoryKind::kHost, destination_.data(), destination_.size());
      PieceName name;
      name.bytes = bytes;
      const auto fetch = transport_->Fetch(peer_, name, {region, 0, bytes});
      ASSERT_TRUE(fetch.ok());
      Change([&] { fetch_ = *fetch; });
    });
    EXPECT_TRUE(member.ReadFrame().has_value());
    EXPECT_EQ(member.header().type, FrameType::kFetch);
    return member.header().id;
  }
  std::span<const std::byte> Bytes(std::size_t first, std::size_t count) const {
    return std::span(memory_).subspan(first, count);
  }

  std::vector<std::byte> destination_ = std::vector<std::byte>(1000);
  // Behind the mutex.
  PeerId peer_;
  FetchId fetch_;
  std::size_t messages_ = 0;
  std::vector<FetchStatus> done_;
};

TEST_P(PiecesTest, APieceIsCompleteWithItsLastFrame) {
  const auto member = MakeMember();
  const std::uint64_t id = Ask(*member, 1000);
  member->WriteFrame(FrameType::kPiece, id, Bytes(0, 1));
  member->WriteFrame(FrameType::kPiece, id, Bytes(1, 600));
  member->WriteFrame(FrameType::kMessage, 0, Text("in between"));
  Await([&] { return messages_ == 1; });
  {
    const std::lock_guard lock(mutex_);
    EXPECT_TRUE(done_.empty());
  }
  member->WriteFrame(FrameType::kPiece, id, Bytes(601, 399));
  Await([&] { return done_ == std::vector{FetchStatus::kOk}; });
  EXPECT_TRUE(std::ranges::equal(destination_, Bytes(0, 1000)));
}

TEST_P(PiecesTest, NoFrameGoesBeyondThePiece) {
  const auto member = MakeMember();
  const std::uint64_t id = Ask(*member, 1000);
  member->WriteFrame(FrameType::kPiece, id, Bytes(0, 600));
  member->WriteFrame(FrameType::kPiece, id, Bytes(0, 401));
  EXPECT_NE(AwaitDown().message.find("401 bytes behind 600 of a piece"), std::string::npos);
  Await([&] { return done_ == std::vector{FetchStatus::kPeerDown}; });
}

// Else a peer could keep a fetch for ever without sending anything of it.
TEST_P(PiecesTest, NoFrameOfAPieceIsEmpty) {
  const auto member = MakeMember();
  const std::uint64_t id = Ask(*member, 1000);
  member->WriteFrame(FrameType::kPiece, id, Bytes(0, 600));
  member->WriteFrame(FrameType::kPiece, id, {});
  EXPECT_NE(AwaitDown().message.find("0 bytes behind 600 of a piece"), std::string::npos);
}

TEST_P(PiecesTest, WhatIsGivenUpBetweenFramesIsReadAway) {
  const auto member = MakeMember();
  const std::uint64_t id = Ask(*member, 1000);
  member->WriteFrame(FrameType::kPiece, id, Bytes(0, 600));
  member->WriteFrame(FrameType::kMessage, 0, Text("in between"));
  Await([&] { return messages_ == 1; });
  transport_->Post([this] { transport_->GiveUp(fetch_); });
  Await([&] { return done_ == std::vector{FetchStatus::kGivenUp}; });
  member->WriteFrame(FrameType::kPiece, id, Bytes(600, 400));
  member->WriteFrame(FrameType::kMessage, 0, Text("behind it"));
  Await([&] { return messages_ == 2; });
  EXPECT_TRUE(std::ranges::all_of(std::span(destination_).subspan(600),
                                  [](std::byte b) { return b == std::byte{0}; }));
  EXPECT_TRUE(member->ReadFrame().has_value());
  EXPECT_EQ(member->header().type, FrameType::kCancel);
  const std::uint64_t next = Ask(*member, 10);
  member->WriteFrame(FrameType::kPiece, next, Bytes(0, 10));
  Await([&] { return done_ == std::vector{FetchStatus::kGivenUp, FetchStatus::kOk}; });
}

// Two addresses stand for two hosts. A request that waited behind pieces would leave the other
// direction of a link idle.
TEST_P(PiecesTest, BetweenHostsWhatIsSaidWaitsForLittleOfWhatIsSent) {
  const auto member = MakeMember("127.0.0.2");
  PieceName name;
  name.bytes = kMaxPieceBytes;
  for (std::uint64_t id = 1; id <= kWindow; ++id) {
    member->WriteFrame(FrameType::kFetch, id, EncodePieceName(name));
  }
  // Nothing is read here meanwhile, so the transport writes until the connection takes no more;
  // with each of these it has had a turn.
  for (std::size_t turn = 1; turn <= 16; ++turn) {
    member->WriteFrame(FrameType::kMessage, 0, Text("a turn"));
    Await([&] { return messages_ == turn; });
  }
  transport_->Post([this] { EXPECT_TRUE(transport_->Send(peer_, Text("now"))); });
  std::size_t before = 0;
  std::size_t bytes = 0;
  std::size_t said = 0;
  while (bytes < kWindow * kMaxPieceBytes) {
    const auto body = member->ReadFrame();
    ASSERT_TRUE(body.has_value());
    if (member->header().type == FrameType::kMessage) {
      ++said;
      before = bytes;
      continue;
    }
    ASSERT_EQ(member->header().type, FrameType::kPiece);
    ASSERT_EQ(member->header().id, 1 + bytes / kMaxPieceBytes) << "one piece after the other";
    EXPECT_TRUE(std::ranges::equal(*body, Bytes(bytes % kMaxPieceBytes, body->size())));
    bytes += body->size();
  }
  EXPECT_EQ(said, 1u);
  // What was not read before it: less than the buffers of the two sockets take without a bound.
  EXPECT_LT(before, 1u << 20);
}

INSTANTIATE_TEST_SUITE_P(Streams, PiecesTest, ::testing::Bool(),
                         [](const auto& tested) { return tested.param ? "tls" : "plain"; });

}  // namespace
}  // namespace lockstep::transport::tcp
