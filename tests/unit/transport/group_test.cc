// Several connections to a peer: how they come to be one, and end as one. Over real sockets, the
// other end by hand.
#include <algorithm>
#include <future>
#include <thread>

#include "tests/unit/transport/hostile_fixture.h"

namespace lockstep::transport::tcp {
namespace {

using namespace std::chrono_literals;

constexpr std::uint32_t kConnections = 3;
// To wait for in a test, and more than this process stands still on a busy machine.
constexpr Duration kShort = 5s;

PieceName Piece(std::size_t bytes) {
  PieceName name;
  name.bytes = bytes;
  return name;
}

// Once as it is, once in TLS.
class GroupTest : public HostileFixture, public ::testing::WithParamInterface<bool> {
 protected:
  // Longer than the peers' patience: nothing ends because its time is over.
  explicit GroupTest(Duration connect_timeout = 1h) : HostileFixture(GetParam(), kConnections) {
    options_.connect_timeout = connect_timeout;
  }

  void OnPeerUp(PeerId peer, const MemberId& who, const PathReport& path) override {
    HostileFixture::OnPeerUp(peer, who, path);
    Change([&] {
      peer_ = peer;
      path_ = path.text;
    });
  }
  void OnPeerDown(PeerId peer, const Error& reason) override {
    Change([&] {
      done_before_down_ = done_.size();
      served_before_down_ = served_ == serves_;
    });
    HostileFixture::OnPeerDown(peer, reason);
  }
  ServeAnswer OnFetch(PeerId peer, const PieceName& name) override {
    ServeAnswer answer = HostileFixture::OnFetch(peer, name);
    const std::lock_guard lock(mutex_);
    if (later_) answer = {.have = false, .slice = {}, .cookie = answer.cookie, .later = true};
    return answer;
  }
  void OnFetchDone(FetchId, FetchStatus status) override {
    Change([&] { done_.push_back(status); });
  }

  template <class Condition>
  void Await(Condition condition) {
    std::unique_lock lock(mutex_);
    ASSERT_TRUE(changed_.wait_for(lock, 30s, condition));
  }
  Connections MakeUp() {
    Connections all = MakeGood();
    Await([&] { return ups_ > 0; });
    return all;
  }
  // A main connection, and what is to be said over the next one.
  std::unique_ptr<RawPeer> MakeMain(ConnectionPlace& place, const MemberId& who = kHostile) {
    auto main = MakePeer();
    main->Prove(who);
    main->WritePlace({.connections = kConnections});
    const auto answer = main->ReadPlace();
    EXPECT_TRUE(answer.has_value());
    place = {kConnections, 1, answer ? answer->group : GroupId{}};
    return main;
  }
  // What comes of a further connection that says this.
  std::string Refused(const ConnectionPlace& place, const MemberId& who = kHostile) {
    const auto peer = MakePeer();
    peer->Prove(who);
    peer->WritePlace(place);
    std::string why = peer->ReadRefusal();
    EXPECT_TRUE(peer->AwaitEnd());
    return why;
  }
  void ExpectNothingIsUp() {
    const std::lock_guard lock(mutex_);
    EXPECT_EQ(ups_, 0u);
  }

  // Behind the mutex.
  PeerId peer_;
  std::string path_;
  std::vector<FetchStatus> done_;
  std::size_t done_before_down_ = 0;
  bool served_before_down_ = false;
  bool later_ = false;
};

TEST_P(GroupTest, ComesUpOnceWhenAllAreThereAndTheOtherEndBegins) {
  const Connections all = MakeConnections();
  ExpectNothingIsUp();
  for (const auto& one : all) one->WriteFrame(FrameType::kBegin, 0, {});
  // Answered over the connection over which it came; so all of them have begun.
  for (std::uint64_t i = 0; i < all.size(); ++i) {
    all[i]->WriteFrame(FrameType::kFetch, i, EncodePieceName(Piece(100 + i)));
    const auto piece = all[i]->ReadFrame();
    ASSERT_TRUE(piece.has_value());
    EXPECT_EQ(all[i]->header().id, i);
    EXPECT_EQ(piece->size(), 100 + i);
  }
  const std::lock_guard lock(mutex_);
  EXPECT_EQ(ups_, 1u);
  EXPECT_TRUE(path_.ends_with(", 3 connections")) << path_;
}

TEST_P(GroupTest, BeginsOnlyWhenAllAreThere) {
  ConnectionPlace place;
  const auto main = MakeMain(place);
  const auto second = MakePeer();
  second->Prove();
  second->WritePlace(place);
  EXPECT_TRUE(second->ReadPlace().has_value());
  main->WriteFrame(FrameType::kBegin, 0, {});
  EXPECT_TRUE(main->AwaitEnd());
  EXPECT_TRUE(second->AwaitEnd());
  ExpectNothingIsUp();
}

TEST_P(GroupTest, NothingIsTakenBeforeItBegins) {
  for (const FrameType type : {FrameType::kMessage, FrameType::kSettings, FrameType::kFetch,
                               FrameType::kCancel, FrameType::kPiece, FrameType::kGone}) {
    const Connections all = MakeConnections();
    const std::vector<std::byte> body(type == FrameType::kFetch ? kPieceNameBytes : 0);
    all[1]->WriteFrame(type, 1, body);
    for (const auto& one : all) EXPECT_TRUE(one->AwaitEnd());
  }
  ExpectNothingIsUp();
  EXPECT_EQ(serves_, 0u);
}

TEST_P(GroupTest, EachConnectionBeginsOnceAndFirst) {
  const Connections early = MakeConnections();
  early[0]->WriteFrame(FrameType::kBegin, 0, {});
  Await([&] { return ups_ == 1; });
  early[1]->WriteFrame(FrameType::kMessage, 0, {});
  EXPECT_TRUE(early[0]->AwaitEnd());
  EXPECT_NE(AwaitDown().message.find("begins once"), std::string::npos);
  const Connections twice = MakeGood();
  twice[2]->WriteFrame(FrameType::kBegin, 0, {});
  EXPECT_TRUE(twice[0]->AwaitEnd());
}

TEST_P(GroupTest, AConnectionOfAnotherMemberIsRefusedAndHarmsNobody) {
  ConnectionPlace place;
  const auto main = MakeMain(place);
  EXPECT_NE(Refused(place, kAnother).find("belongs to no main one of worker 3"), std::string::npos);
  EXPECT_NE(Refused(place, {kHostile.worker, Incarnation(2)}).find("belongs to no main one"),
            std::string::npos);
  Connections further;
  for (; place.number < kConnections; ++place.number) {
    further.push_back(MakePeer());
    further.back()->Prove();
    further.back()->WritePlace(place);
    EXPECT_TRUE(further.back()->ReadPlace().has_value());
  }
  main->WriteFrame(FrameType::kBegin, 0, {});
  Await([&] { return ups_ == 1; });
}

TEST_P(GroupTest, AConnectionOfAnUnknownGroupIsRefused) {
  ConnectionPlace place;
  const auto main = MakeMain(place);
  place.group.back() ^= std::byte{1};
  EXPECT_NE(Refused(place).find("belongs to no main one"), std::string::npos);
  place.number = 0;
  EXPECT_NE(Refused(place).find("says its group"), std::string::npos);
}

TEST_P(GroupTest, NoMoreConnectionsThanAgreed) {
  ConnectionPlace place;
  const auto main = MakeMain(place);
  EXPECT_NE(Refused({kConnections + 1, kConnections, place.group})
                .find("worker 1 (incarnation 1) has exchange.connections = 3, the other end 4"),
            std::string::npos);
  const auto beyond = MakePeer();
  beyond->Prove();
  beyond->WritePlace({kConnections, kConnections, place.group});
  EXPECT_TRUE(beyond->AwaitEnd());
  const auto first = MakePeer();
  first->Prove();
  first->WritePlace(place);
  EXPECT_TRUE(first->ReadPlace().has_value());
  EXPECT_NE(Refused(place).find("connection 1 of worker 2 (incarnation 1) is there already"),
            std::string::npos);
}

TEST_P(GroupTest, NoMoreConnectionsToOneThatIsUp) {
  ConnectionPlace place;
  Connections all;
  all.push_back(MakeMain(place));
  for (; place.number < kConnections; ++place.number) {
    all.push_back(MakePeer());
    all.back()->Prove();
    all.back()->WritePlace(place);
    EXPECT_TRUE(all.back()->ReadPlace().has_value());
  }
  for (const auto& one : all) one->WriteFrame(FrameType::kBegin, 0, {});
  Await([&] { return ups_ == 1; });
  EXPECT_NE(Refused({kConnections, 1, place.group}).find("belongs to no main one"),
            std::string::npos);
}

TEST_P(GroupTest, OneConnectionWhereThereAreSeveralIsRefused) {
  const auto peer = MakePeer();
  peer->Prove();
  peer->WriteFrame(FrameType::kSettings, kWindow, {});
  EXPECT_NE(peer->ReadRefusal().find("has exchange.connections = 3, the other end 1"),
            std::string::npos);
  EXPECT_TRUE(peer->AwaitEnd());
}

TEST_P(GroupTest, AMemberWithAnotherNumberLearnsWhy) {
  Options options = options_;
  options.self = kHostile;
  options.connections = 2;
  Error why = WhyRefused(options, transport_->address());
  EXPECT_EQ(why.code, ErrorCode::kRefused);
  EXPECT_NE(why.message.find("refused by the other end: worker 1 (incarnation 1) has "
                             "exchange.connections = 3, the other end 2"),
            std::string::npos)
      << why.message;

  options.self = kServer;
  options.connections = 1;
  auto one = std::move(*MakeTcpTransport(options));
  ASSERT_TRUE(one->Start(this).ok());
  options.self = kHostile;
  options.connections = 3;
  why = WhyRefused(options, one->address());
  one->Stop();
  EXPECT_EQ(why.code, ErrorCode::kRefused);
  EXPECT_NE(why.message.find("has exchange.connections = 3, the other end 1"), std::string::npos)
      << why.message;
}

TEST_P(GroupTest, AMemberHasSoManyUnfinishedOnesAndNoMore) {
  Connections mains;
  for (std::size_t i = 0; i < 4 * kConnections; ++i) {
    ConnectionPlace place;
    mains.push_back(MakeMain(place, kAnother));
  }
  const auto beyond = MakePeer();
  beyond->Prove(kAnother);
  EXPECT_NE(beyond->ReadRefusal().find("not all there"), std::string::npos);
  EXPECT_TRUE(beyond->AwaitEnd());
  // Others are let in.
  const Connections other = MakeConnections();
}

TEST_P(GroupTest, StrangersTakeNoPlacesOfWhatIsProven) {
  ConnectionPlace place;
  const auto main = MakeMain(place);
  const auto proven = MakePeer();
  proven->Prove();
  std::vector<std::unique_ptr<RawPeer>> silent;
  for (int i = 0; i < 300; ++i) silent.push_back(std::make_unique<RawPeer>(transport_->address()));
  EXPECT_TRUE(silent.front()->AwaitEnd());
  proven->WritePlace(place);
  EXPECT_TRUE(proven->ReadPlace().has_value());
}

TEST_P(GroupTest, TheWindowIsOneForAllConnections) {
  const Connections all = MakeUp();
  {
    const std::lock_guard lock(mutex_);
    later_ = true;  // so that none is answered meanwhile
  }
  // Of each connection fewer than its window would allow.
  constexpr std::size_t kAllowed = kWindowsOutstanding * kWindow;
  static_assert(kAllowed % kConnections != 0);
  for (std::uint64_t i = 0; i <= kAllowed; ++i) {
    all[i % kConnections]->WriteFrame(FrameType::kFetch, i, EncodePieceName(Piece(100)));
  }
  EXPECT_NE(AwaitDown().message.find("more fetches than its window allows"), std::string::npos);
  const std::lock_guard lock(mutex_);
  EXPECT_EQ(serves_, kAllowed);
  EXPECT_TRUE(served_before_down_);
  later_ = false;
}

// The transport's own fetches go where the fewest bytes are awaited, and all end before the peer.
TEST_P(GroupTest, FetchesAreSpreadAndOneConnectionThatIsCutEndsAll) {
  Connections all = MakeUp();
  std::vector<std::byte> destination(1000);
  transport_->Post([&] {
    const RegionId region =
        *transport_->Register(MemoryKind::kHost, destination.data(), destination.size());
    // 500 over the first, so the small ones go over the two others.
    for (const std::uint64_t bytes : {500, 10, 10, 10}) {
      EXPECT_TRUE(transport_->Fetch(peer_, Piece(bytes), {region, 0, bytes}).ok());
    }
    EXPECT_EQ(transport_->Fetch(peer_, Piece(1), {region, 0, 1}).error().code,
              ErrorCode::kUnavailable);
  });
  std::vector<std::uint64_t> asked;
  for (const std::size_t frames : {1, 2, 1}) {
    RawPeer& one = *all[asked.size() == 0 ? 0 : asked.size() == 1 ? 1 : 2];
    for (std::size_t i = 0; i < frames; ++i) {
      ASSERT_TRUE(one.ReadFrame().has_value());
      EXPECT_EQ(one.header().type, FrameType::kFetch);
    }
    asked.push_back(one.header().id);
  }
  // In the midst of pieces, in both directions.
  all[0]->WriteFrame(FrameType::kPiece, asked[0], std::span(memory_).first(100));
  all[2]->WriteFrame(FrameType::kFetch, 7, EncodePieceName(Piece(kMaxPieceBytes)));
  Await([&] { return serves_ == 1; });
  all[1].reset();
  AwaitDown();
  EXPECT_TRUE(all[0]->AwaitEnd());
  EXPECT_TRUE(all[2]->AwaitEnd());
  const std::lock_guard lock(mutex_);
  EXPECT_EQ(done_, std::vector(4, FetchStatus::kPeerDown));
  EXPECT_EQ(done_before_down_, 4u);
  EXPECT_TRUE(served_before_down_);
  EXPECT_EQ(downs_, 1u);
}

INSTANTIATE_TEST_SUITE_P(Streams, GroupTest, ::testing::Bool(),
                         [](const auto& tested) { return tested.param ? "tls" : "plain"; });

class GroupTimeTest : public GroupTest {
 protected:
  GroupTimeTest() : GroupTest(kShort) {}
};

TEST_P(GroupTimeTest, OneThatIsNeverCompleteEnds) {
  ConnectionPlace place;
  const auto main = MakeMain(place);
  const auto second = MakePeer();
  second->Prove();
  second->WritePlace(place);
  EXPECT_TRUE(second->ReadPlace().has_value());
  const auto silent = MakePeer();
  silent->Prove();
  const Connections not_begun = MakeConnections();
  EXPECT_TRUE(main->AwaitEnd());
  EXPECT_TRUE(second->AwaitEnd());
  EXPECT_TRUE(silent->AwaitEnd());
  for (const auto& one : not_begun) EXPECT_TRUE(one->AwaitEnd());
  ExpectNothingIsUp();
}

INSTANTIATE_TEST_SUITE_P(Streams, GroupTimeTest, ::testing::Bool(),
                         [](const auto& tested) { return tested.param ? "tls" : "plain"; });

// Who connects, to an acceptor by hand.
class ConnectorTest : public ::testing::Test, public Handler {
 protected:
  explicit ConnectorTest(Duration connect_timeout = 1h) : connect_timeout_(connect_timeout) {}
  void SetUp() override {
    listening_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    // So that a connection which does not come fails the test.
    const timeval patience{30, 0};
    ::setsockopt(listening_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
    sockaddr_in own{};
    own.sin_family = AF_INET;
    own.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(own);
    ASSERT_EQ(::bind(listening_, reinterpret_cast<sockaddr*>(&own), size), 0);
    ASSERT_EQ(::listen(listening_, 16), 0);
    ASSERT_EQ(::getsockname(listening_, reinterpret_cast<sockaddr*>(&own), &size), 0);
    Options options;
    options.self = kHostile;
    options.job_key = JobKey();
    options.connections = kConnections;
    options.connect_timeout = connect_timeout_;
    transport_ = std::move(*MakeTcpTransport(options));
    ASSERT_TRUE(transport_->Start(this).ok());
    transport_->Post([this, port = ntohs(own.sin_port)] {
      transport_->Connect(kServer, "127.0.0.1:" + std::to_string(port));
    });
  }
  void TearDown() override {
    transport_->Stop();
    ::close(listening_);
  }
  // The next connection, proven; what it says of itself in `place`.
  std::unique_ptr<RawPeer> Accept(ConnectionPlace& place) {
    int came = -1;
    do {
      came = ::accept(listening_, nullptr, nullptr);
    } while (came < 0 && errno == EINTR);  // also when the process was stopped and goes on
    EXPECT_GE(came, 0);
    auto peer = std::make_unique<RawPeer>(came);
    Handshake handshake(Handshake::Role::kAcceptor, kServer, JobKey(), std::nullopt);
    peer->Shake(handshake);
    const auto said = peer->ReadPlace();
    EXPECT_TRUE(said.has_value());
    place = said.value_or(ConnectionPlace{});
    return peer;
  }
  bool CloseNext() {
    int came = -1;
    do {
      came = ::accept(listening_, nullptr, nullptr);
    } while (came < 0 && errno == EINTR);
    return came >= 0 && ::close(came) == 0;
  }
  std::string WhyFailed() {
    auto why = why_.get_future();
    return why.wait_for(30s) == std::future_status::ready ? why.get() : "nothing came of it";
  }

  void OnPeerUp(PeerId, const MemberId&, const PathReport&) override { why_.set_value("up"); }
  void OnConnectFailed(const MemberId&, const Error& error) override {
    why_.set_value(error.message);
  }
  void OnPeerDown(PeerId, const Error&) override {}
  void OnMessage(PeerId, std::span<const std::byte>) override {}
  ServeAnswer OnFetch(PeerId, const PieceName&) override { return {}; }
  void OnServed(PeerId, std::uint64_t) override {}
  void OnFetchDone(FetchId, FetchStatus) override {}

  static constexpr GroupId kGroup{std::byte{7}};
  const Duration connect_timeout_;
  int listening_ = -1;
  std::unique_ptr<Transport> transport_;
  std::promise<std::string> why_;
};

TEST_F(ConnectorTest, OpensTheFurtherOnesAndBeginsWhenAllAreAnswered) {
  ConnectionPlace place;
  const auto main = Accept(place);
  EXPECT_EQ(place, (ConnectionPlace{kConnections, 0, {}}));
  main->WritePlace({kConnections, 0, kGroup});
  std::vector<std::unique_ptr<RawPeer>> further;
  std::vector<std::uint32_t> numbers;
  for (std::uint32_t i = 1; i < kConnections; ++i) {
    further.push_back(Accept(place));
    EXPECT_EQ(place.group, kGroup);
    numbers.push_back(place.number);
    further.back()->WritePlace(place);
  }
  std::ranges::sort(numbers);
  EXPECT_EQ(numbers, (std::vector<std::uint32_t>{1, 2}));
  EXPECT_EQ(WhyFailed(), "up");
  EXPECT_TRUE(main->ReadFrame().has_value());
  EXPECT_EQ(main->header().type, FrameType::kBegin);
  for (const auto& one : further) {
    EXPECT_TRUE(one->ReadFrame().has_value());
    EXPECT_EQ(one->header().type, FrameType::kBegin);
  }
}

// As an end does where strangers press in: the newest of them takes the place of one that has not
// been read yet.
TEST_F(ConnectorTest, TriesAgainWhenItIsClosedBeforeItHasBeenRead) {
  for (int i = 0; i < 2; ++i) CloseNext();
  ConnectionPlace place;
  const auto main = Accept(place);
  main->WritePlace({kConnections, 0, kGroup});
  std::vector<std::unique_ptr<RawPeer>> further;
  for (std::uint32_t i = 1; i < kConnections; ++i) {
    further.push_back(Accept(place));
    further.back()->WritePlace(place);
  }
  EXPECT_EQ(WhyFailed(), "up");
}

TEST_F(ConnectorTest, AnAnswerForAnotherConnectionEndsIt) {
  ConnectionPlace place;
  const auto main = Accept(place);
  main->WritePlace({kConnections, 0, kGroup});
  const auto further = Accept(place);
  place.group.back() ^= std::byte{1};
  further->WritePlace(place);
  EXPECT_NE(WhyFailed().find("is for another one"), std::string::npos);
  EXPECT_TRUE(main->AwaitEnd());
}

class ConnectorTimeTest : public ConnectorTest {
 protected:
  ConnectorTimeTest() : ConnectorTest(kShort) {}
};

TEST_F(ConnectorTimeTest, FailsWhenItIsClosedAgainAndAgain) {
  std::thread closing([this] {
    while (CloseNext()) {
    }
  });
  const std::string why = WhyFailed();
  ::shutdown(listening_, SHUT_RDWR);
  closing.join();
  EXPECT_TRUE(why.find("closed") != std::string::npos || why.find("reset") != std::string::npos)
      << why;
}

TEST_F(ConnectorTimeTest, FailsWhenOneIsNotAnswered) {
  ConnectionPlace place;
  const auto main = Accept(place);
  main->WritePlace({kConnections, 0, kGroup});
  const auto first = Accept(place);
  first->WritePlace(place);
  const auto second = Accept(place);
  const std::string why = WhyFailed();
  EXPECT_NE(why.find("not all connections were there in time (2 of 3 were)"), std::string::npos)
      << why;
}

TEST_F(ConnectorTest, FailsWhenOneOfThemEnds) {
  ConnectionPlace place;
  const auto main = Accept(place);
  main->WritePlace({kConnections, 0, kGroup});
  Accept(place).reset();
  const std::string why = WhyFailed();
  EXPECT_NE(why.find(" of 3: "), std::string::npos) << why;
  EXPECT_TRUE(main->AwaitEnd());
}

}  // namespace
}  // namespace lockstep::transport::tcp
