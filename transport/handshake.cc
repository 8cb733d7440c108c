#include "transport/handshake.h"

#include <fmt/format.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>

#include <algorithm>
#include <concepts>

#include "base/check.h"

namespace lockstep::transport {
namespace {

// Every message has: magic (4), version (2), type (1), zero (1), body. Integers are little-endian.
constexpr std::uint32_t kMagic = 0x48534b4c;  // "LKSH"
constexpr std::size_t kHeaderBytes = 8;
constexpr std::size_t kIdentityBytes = 8;
constexpr std::size_t kHelloBytes = kIdentityBytes + Handshake::kNonceBytes;
constexpr std::size_t kAnswerBytes = kHelloBytes + Handshake::kProofBytes;
constexpr std::size_t kMaxReasonBytes = Handshake::kMaxMessageBytes - kHeaderBytes;

enum Type : std::uint8_t { kHello = 1, kAnswer = 2, kProof = 3, kAccepted = 4, kRefused = 5 };

template <std::unsigned_integral T>
void Put(std::vector<std::byte>& out, T value) {
  for (std::size_t i = 0; i < sizeof(T); ++i) {
    out.push_back(static_cast<std::byte>((value >> (8 * i)) & 0xff));
  }
}

void Put(std::vector<std::byte>& out, std::span<const std::byte> bytes) {
  out.insert(out.end(), bytes.begin(), bytes.end());
}

void Put(std::vector<std::byte>& out, const MemberId& who) {
  Put(out, who.worker.value);
  Put(out, who.incarnation.value);
}

template <class T>
T Get(std::span<const std::byte> in, std::size_t at) {
  LOCKSTEP_CHECK(at + sizeof(T) <= in.size());
  T value = 0;
  for (std::size_t i = 0; i < sizeof(T); ++i) {
    value |= static_cast<T>(static_cast<T>(in[at + i]) << (8 * i));
  }
  return value;
}

MemberId GetIdentity(std::span<const std::byte> in) {
  return {WorkerId(Get<std::uint32_t>(in, 0)), Incarnation(Get<std::uint32_t>(in, 4))};
}

std::vector<std::byte> Message(std::uint8_t type) {
  std::vector<std::byte> out;
  out.reserve(Handshake::kMaxMessageBytes);
  Put(out, kMagic);
  Put(out, Handshake::kVersion);
  Put(out, type);
  Put(out, std::uint8_t{0});
  return out;
}

// A stranger's reason ends up in a log line: it becomes one line of printable ASCII.
std::string Printable(std::span<const std::byte> bytes) {
  std::string text(bytes.size(), '?');
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    const auto c = std::to_integer<unsigned char>(bytes[i]);
    if (c >= 0x20 && c < 0x7f) text[i] = static_cast<char>(c);
  }
  return text;
}

}  // namespace

std::string Describe(const MemberId& who) {
  return fmt::format("worker {} (incarnation {})", who.worker, who.incarnation);
}

Handshake::Handshake(Role role, const MemberId& self, std::span<const std::byte> job_key,
                     std::optional<MemberId> expected)
    : role_(role),
      self_(self),
      expected_(expected),
      key_(job_key.begin(), job_key.end()),
      state_(role == Role::kConnector ? State::kAwaitAnswer : State::kAwaitHello) {
  LOCKSTEP_CHECK(!key_.empty(), "a handshake needs a job key");
  const int drawn =
      RAND_bytes(reinterpret_cast<unsigned char*>(nonce_.data()), static_cast<int>(nonce_.size()));
  LOCKSTEP_CHECK(drawn == 1, "no random bytes to be had");
}

Handshake::~Handshake() { OPENSSL_cleanse(key_.data(), key_.size()); }

const MemberId& Handshake::peer() const {
  LOCKSTEP_CHECK(done(), "the other end has not proven who it is");
  return peer_;
}

std::vector<std::byte> Handshake::Begin() {
  if (role_ == Role::kAcceptor) return {};
  std::vector<std::byte> out = Message(kHello);
  Put(out, self_);
  Put(out, nonce_);
  return out;
}

Handshake::Proof Handshake::Prove(Role role) const {
  const bool connector = role_ == Role::kConnector;
  std::vector<std::byte> text;
  const std::string_view label =
      role == Role::kConnector ? "lockstep handshake connector" : "lockstep handshake acceptor";
  Put(text, std::as_bytes(std::span(label)));
  Put(text, std::uint8_t{0});
  Put(text, kVersion);
  Put(text, connector ? nonce_ : peer_nonce_);
  Put(text, connector ? peer_nonce_ : nonce_);
  Put(text, connector ? self_ : peer_);
  Put(text, connector ? peer_ : self_);
  Proof proof{};
  unsigned int size = 0;
  const unsigned char* done = HMAC(EVP_sha256(), key_.data(), static_cast<int>(key_.size()),
                                   reinterpret_cast<const unsigned char*>(text.data()), text.size(),
                                   reinterpret_cast<unsigned char*>(proof.data()), &size);
  LOCKSTEP_CHECK(done != nullptr && size == kProofBytes, "HMAC-SHA256 failed");
  return proof;
}

std::optional<std::string> Handshake::CheckPeer(std::span<const std::byte> proof) const {
  const Proof wanted = Prove(role_ == Role::kConnector ? Role::kAcceptor : Role::kConnector);
  LOCKSTEP_CHECK(proof.size() == wanted.size());
  if (CRYPTO_memcmp(proof.data(), wanted.data(), wanted.size()) != 0) {
    return fmt::format("{} and {} do not have the same job key", Describe(self_), Describe(peer_));
  }
  if (expected_ && *expected_ != peer_) {
    return fmt::format("{} is at an end where {} was expected", Describe(peer_),
                       Describe(*expected_));
  }
  return std::nullopt;
}

Result<std::vector<std::byte>> Handshake::Fail(ErrorCode code, const std::string& reason,
                                               bool tell) {
  state_ = State::kFailed;
  if (tell) farewell_ = Refusal(reason);
  return Error{code, reason};
}

std::vector<std::byte> Handshake::Refusal(std::string_view reason) {
  std::vector<std::byte> out = Message(kRefused);
  Put(out, std::as_bytes(std::span(reason.substr(0, kMaxReasonBytes))));
  return out;
}

std::optional<Error> Handshake::ReadRefusal(std::span<const std::byte> message) {
  if (message.size() < kHeaderBytes || message.size() > kMaxMessageBytes ||
      Get<std::uint32_t>(message, 0) != kMagic || Get<std::uint8_t>(message, 6) != kRefused ||
      message[7] != std::byte{0}) {
    return std::nullopt;
  }
  return Error{ErrorCode::kRefused,
               "refused by the other end: " + Printable(message.subspan(kHeaderBytes))};
}

Result<std::vector<std::byte>> Handshake::Consume(std::span<const std::byte> message) {
  LOCKSTEP_CHECK(state_ != State::kFailed && state_ != State::kDone, "the handshake is over");
  if (message.size() < kHeaderBytes || message.size() > kMaxMessageBytes ||
      Get<std::uint32_t>(message, 0) != kMagic || message[7] != std::byte{0}) {
    return Fail(ErrorCode::kInvalid, "the other end does not speak Lockstep's handshake", false);
  }
  const auto version = Get<std::uint16_t>(message, 4);
  const auto type = Get<std::uint8_t>(message, 6);
  const auto body = message.subspan(kHeaderBytes);
  if (const auto refusal = ReadRefusal(message)) {
    return Fail(refusal->code, refusal->message, false);
  }
  if (version != kVersion) {
    return Fail(ErrorCode::kRefused,
                fmt::format("{} speaks version {} of the handshake, the other end version {}",
                            Describe(self_), kVersion, version),
                true);
  }
  const auto is = [&](State state, Type wanted, std::size_t bytes) {
    return state_ == state && type == wanted && body.size() == bytes;
  };
  if (is(State::kAwaitHello, kHello, kHelloBytes)) {
    peer_ = GetIdentity(body);
    std::ranges::copy(body.subspan(kIdentityBytes, kNonceBytes), peer_nonce_.begin());
    state_ = State::kAwaitProof;
    std::vector<std::byte> out = Message(kAnswer);
    Put(out, self_);
    Put(out, nonce_);
    Put(out, Prove(Role::kAcceptor));
    return out;
  }
  if (is(State::kAwaitAnswer, kAnswer, kAnswerBytes)) {
    peer_ = GetIdentity(body);
    std::ranges::copy(body.subspan(kIdentityBytes, kNonceBytes), peer_nonce_.begin());
    if (const auto reason = CheckPeer(body.subspan(kHelloBytes))) {
      return Fail(ErrorCode::kRefused, *reason, true);
    }
    state_ = State::kAwaitAccepted;
    std::vector<std::byte> out = Message(kProof);
    Put(out, Prove(Role::kConnector));
    return out;
  }
  if (is(State::kAwaitProof, kProof, kProofBytes)) {
    if (const auto reason = CheckPeer(body)) return Fail(ErrorCode::kRefused, *reason, true);
    state_ = State::kDone;
    return Message(kAccepted);
  }
  if (is(State::kAwaitAccepted, kAccepted, 0)) {
    state_ = State::kDone;
    return std::vector<std::byte>{};
  }
  return Fail(ErrorCode::kInvalid,
              fmt::format("a handshake message of type {} and {} bytes is out of place", type,
                          message.size()),
              false);
}

}  // namespace lockstep::transport
