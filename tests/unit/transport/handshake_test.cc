#include "transport/handshake.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <algorithm>
#include <string>

#include "tests/property_check.h"

namespace lockstep::transport {
namespace {

using Bytes = std::vector<std::byte>;
using Role = Handshake::Role;
using ::testing::HasSubstr;

constexpr MemberId kAlice{WorkerId(3), Incarnation(2)};
constexpr MemberId kBob{WorkerId(5), Incarnation(1)};

Bytes Key(unsigned char fill) { return Bytes(32, std::byte{fill}); }

// The two ends of a connection; the messages that crossed it, in order.
struct Ends {
  Handshake connector;
  Handshake acceptor;
  std::vector<Bytes> crossed;

  explicit Ends(const Bytes& connector_key = Key(7), const Bytes& acceptor_key = Key(7),
                std::optional<MemberId> expected = kBob)
      : connector(Role::kConnector, kAlice, connector_key, expected),
        acceptor(Role::kAcceptor, kBob, acceptor_key, std::nullopt) {}

  // Runs until both are done or one fails; returns the error of the one that failed.
  std::optional<Error> Run() {
    Bytes message = connector.Begin();
    for (bool to_acceptor = true; !message.empty(); to_acceptor = !to_acceptor) {
      crossed.push_back(message);
      auto answer = (to_acceptor ? acceptor : connector).Consume(message);
      if (!answer) return answer.error();
      message = *answer;
    }
    return std::nullopt;
  }
};

TEST(HandshakeTest, BothEndsLearnWhoTheOtherIs) {
  Ends ends;
  EXPECT_EQ(ends.Run(), std::nullopt);
  ASSERT_TRUE(ends.connector.done());
  ASSERT_TRUE(ends.acceptor.done());
  EXPECT_EQ(ends.connector.peer(), kBob);
  EXPECT_EQ(ends.acceptor.peer(), kAlice);
  for (const Bytes& message : ends.crossed) EXPECT_LE(message.size(), Handshake::kMaxMessageBytes);
}

TEST(HandshakeTest, AnotherKeyIsRefusedInOneClearLine) {
  Ends ends(Key(7), Key(8));
  const auto error = ends.Run();
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code, ErrorCode::kRefused);
  EXPECT_THAT(error->message, HasSubstr("do not have the same job key"));
  EXPECT_FALSE(ends.connector.done());
  EXPECT_FALSE(ends.acceptor.done());
  // The other end is told, and does not go on either.
  auto told = ends.acceptor.Consume(ends.connector.farewell());
  ASSERT_FALSE(told);
  EXPECT_EQ(told.error().code, ErrorCode::kRefused);
  EXPECT_THAT(told.error().message, HasSubstr("job key"));
}

TEST(HandshakeTest, TheAcceptorRefusesAConnectorWithoutTheKey) {
  // A connector that does not care what the acceptor proves: it sends a proof made with another
  // key.
  Ends ends(Key(7), Key(8));
  auto answer = ends.acceptor.Consume(ends.connector.Begin());
  ASSERT_TRUE(answer);
  Ends other(Key(7), Key(7));
  auto other_answer = other.acceptor.Consume(other.connector.Begin());
  ASSERT_TRUE(other_answer);
  auto proof = other.connector.Consume(*other_answer);
  ASSERT_TRUE(proof);
  auto refused = ends.acceptor.Consume(*proof);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kRefused);
  EXPECT_FALSE(ends.acceptor.farewell().empty());
}

TEST(HandshakeTest, AProofFromAnEarlierConnectionIsWorthNothing) {
  Ends first;
  ASSERT_EQ(first.Run(), std::nullopt);
  Handshake acceptor(Role::kAcceptor, kBob, Key(7), std::nullopt);
  ASSERT_TRUE(acceptor.Consume(first.crossed[0]));
  EXPECT_FALSE(acceptor.Consume(first.crossed[2]));
  EXPECT_FALSE(acceptor.done());
}

TEST(HandshakeTest, AnAcceptorsProofReflectedIsWorthNothing) {
  // The attacker has no key; it opens a second connection to the acceptor and hopes to use its
  // proof as its own.
  Handshake acceptor(Role::kAcceptor, kBob, Key(7), std::nullopt);
  Handshake stranger(Role::kConnector, kBob, Key(1), std::nullopt);
  auto answer = acceptor.Consume(stranger.Begin());
  ASSERT_TRUE(answer);
  Bytes proof(answer->begin(), answer->begin() + 8);
  proof[6] = std::byte{3};
  proof.insert(proof.end(), answer->end() - Handshake::kProofBytes, answer->end());
  EXPECT_FALSE(acceptor.Consume(proof));
}

TEST(HandshakeTest, AnotherIncarnationThanTheExpectedIsRefused) {
  Ends ends(Key(7), Key(7), MemberId{kBob.worker, kBob.incarnation.Next()});
  const auto error = ends.Run();
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code, ErrorCode::kRefused);
  EXPECT_THAT(error->message, HasSubstr("worker 5 (incarnation 1) is at an end where worker 5 "
                                        "(incarnation 2) was expected"));
}

TEST(HandshakeTest, AnotherVersionIsRefusedAndTold) {
  Ends ends;
  Bytes hello = ends.connector.Begin();
  hello[4] = std::byte{9};
  auto answer = ends.acceptor.Consume(hello);
  ASSERT_FALSE(answer);
  EXPECT_EQ(answer.error().code, ErrorCode::kRefused);
  EXPECT_THAT(answer.error().message, HasSubstr("version 9"));
  auto told = ends.connector.Consume(ends.acceptor.farewell());
  ASSERT_FALSE(told);
  EXPECT_EQ(told.error().code, ErrorCode::kRefused);
  EXPECT_THAT(told.error().message, HasSubstr("version"));
}

TEST(HandshakeTest, ARefusalCannotSmuggleLineBreaksIntoTheLog) {
  Ends ends;
  Bytes refusal = ends.connector.Begin();
  refusal.resize(8);
  refusal[6] = std::byte{5};
  for (const char c : std::string("bad\n\x1b[2Jnews")) refusal.push_back(static_cast<std::byte>(c));
  auto told = ends.acceptor.Consume(refusal);
  ASSERT_FALSE(told);
  EXPECT_THAT(told.error().message, HasSubstr("bad??[2Jnews"));
}

TEST(HandshakeTest, AnyChangedByteEndsTheHandshake) {
  ExpectHolds("a changed byte is seen", [] {
    Ends ends;
    const int victim = *rc::gen::inRange(0, 4);
    Bytes message = ends.connector.Begin();
    for (int i = 0;; ++i) {
      Handshake& receiver = i % 2 == 0 ? ends.acceptor : ends.connector;
      if (i == victim) {
        const auto at = *rc::gen::inRange<std::size_t>(0, message.size());
        message[at] ^= static_cast<std::byte>(1 << *rc::gen::inRange(0, 8));
      }
      auto answer = receiver.Consume(message);
      if (!answer) return;
      if (answer->empty()) break;
      message = *answer;
    }
    // A changed byte of the hello (identity or nonce) shows when the connector checks the proof.
    RC_FAIL("both ends were content");
  });
}

TEST(HandshakeTest, ArbitraryBytesAreRefusedNeverACrash) {
  ExpectHolds("arbitrary bytes end it", [](const std::vector<unsigned char>& tail, bool plausible) {
    Ends ends;
    Bytes message = plausible ? ends.connector.Begin() : Bytes();
    if (plausible) {
      message.resize(8);
      message[6] = static_cast<std::byte>(*rc::gen::inRange(0, 7));
    }
    for (const auto c : tail) message.push_back(static_cast<std::byte>(c));
    auto at_acceptor = ends.acceptor.Consume(message);
    auto at_connector = ends.connector.Consume(message);
    RC_ASSERT(!at_connector.ok());
    RC_ASSERT(!ends.acceptor.done());
    RC_ASSERT(!at_acceptor.ok() || tail.size() == 40);
  });
}

TEST(HandshakeTest, TooLongAMessageIsRefused) {
  Ends ends;
  Bytes hello = ends.connector.Begin();
  hello.resize(Handshake::kMaxMessageBytes + 1);
  EXPECT_FALSE(ends.acceptor.Consume(hello));
}

}  // namespace
}  // namespace lockstep::transport
