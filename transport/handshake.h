// A proof at the start of a connection that both ends belong to the job, and of their identities.
// It does no I/O: bytes in, bytes out.
//
//   connector                                acceptor
//   hello     (identity, nonce)      ->
//                                    <-      answer   (identity, nonce, its proof)
//   proof     (its proof)            ->
//                                    <-      accepted
//
// A proof is HMAC-SHA256(job key, role || version || both nonces || both identities): fresh nonces
// stop replay, the role stops reflection, the identities stop a member from being taken for
// another. The handshake encrypts nothing. After a failure each end may send farewell(), a refusal
// in words, and closes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "transport/transport.h"

namespace lockstep::transport {

// "worker 3 (incarnation 2)"
std::string Describe(const MemberId& who);

class Handshake {
 public:
  enum class Role : std::uint8_t { kConnector = 1, kAcceptor = 2 };

  static constexpr std::uint16_t kVersion = 1;
  // No message is longer; a longer one is refused unread. The transport delimits messages.
  static constexpr std::size_t kMaxMessageBytes = 256;
  static constexpr std::size_t kNonceBytes = 32;
  static constexpr std::size_t kProofBytes = 32;

  // `expected`: the member that must be at the other end; without it any member is welcome. The key
  // is copied and must not be empty.
  Handshake(Role role, const MemberId& self, std::span<const std::byte> job_key,
            std::optional<MemberId> expected);
  ~Handshake();
  Handshake(const Handshake&) = delete;
  Handshake& operator=(const Handshake&) = delete;

  // The connector's first message; empty for the acceptor. Call once.
  std::vector<std::byte> Begin();

  // Takes one whole message of the other end and returns the one to send, which may be empty.
  // Errors: kRefused for a wrong key, version or identity, or when the other end refuses; kInvalid
  // for bytes that are no handshake. Do not call it after an error.
  Result<std::vector<std::byte>> Consume(std::span<const std::byte> message);

  // True once the other end has proven itself and accepted us. The bytes that Consume returned last
  // still have to be sent.
  bool done() const { return state_ == State::kDone; }
  // The member at the other end. Only valid when done().
  const MemberId& peer() const;

  // After Consume failed: the refusal to send before closing; empty when there is nobody to tell.
  const std::vector<std::byte>& farewell() const { return farewell_; }

  // A refusal for an end with which there can be no handshake at all.
  static std::vector<std::byte> Refusal(std::string_view reason);
  // The reason in such a refusal, where a message is one.
  static std::optional<Error> ReadRefusal(std::span<const std::byte> message);

 private:
  enum class State : std::uint8_t {
    kAwaitHello,
    kAwaitAnswer,
    kAwaitProof,
    kAwaitAccepted,
    kDone,
    kFailed
  };
  using Nonce = std::array<std::byte, kNonceBytes>;
  using Proof = std::array<std::byte, kProofBytes>;

  Proof Prove(Role role) const;
  Result<std::vector<std::byte>> Fail(ErrorCode code, const std::string& reason, bool tell);
  std::optional<std::string> CheckPeer(std::span<const std::byte> proof) const;

  const Role role_;
  const MemberId self_;
  const std::optional<MemberId> expected_;
  std::vector<std::byte> key_;
  State state_;
  MemberId peer_;
  Nonce nonce_{};
  Nonce peer_nonce_{};
  std::vector<std::byte> farewell_;
};

}  // namespace lockstep::transport
