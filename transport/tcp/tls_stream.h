// TLS 1.3 over one connected, non-blocking socket. It never waits, and belongs to the data thread.
//
// Input is read into scratch memory that connections share, and decrypted from there to its place.
// So all of it has to be taken before another connection's turn: Read until it returns `blocked`.
// Output is encrypted at once into a buffer of the connection's own, so bytes that Write has taken
// are not read again. The kernel's own TLS is not used: it keeps one key for the life of a
// connection (before Linux 6.14).
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/result.h"
#include "transport/tls/psk.h"

namespace lockstep::transport::tcp {

struct Moved {
  std::size_t bytes = 0;
  bool blocked = false;  // no more before the socket is ready again
};

// The end of a connection whose socket refused a "read" or "write"; `error` is errno's.
Error SocketError(const char* doing, int error);

class TlsStream {
 public:
  // The most records that one key seals. AES-GCM is safe up to 2^24.5 (RFC 8446, 5.5).
  static constexpr std::uint64_t kRecordsPerKey = 1u << 22;
  static constexpr std::size_t kScratchBytes = 64u << 10;

  // `socket` and `scratch` outlive it.
  TlsStream(SSL_CTX& context, tls::Role role, int socket, std::span<std::byte> scratch,
            std::uint64_t records_per_key = kRecordsPerKey);
  ~TlsStream();
  TlsStream(const TlsStream&) = delete;
  TlsStream& operator=(const TlsStream&) = delete;

  enum class Step : std::uint8_t { kDone, kWantsRead, kWantsWrite };
  // Call it until it returns kDone, then not again. An error says in words why there is no
  // connection; kRefused where the other end does not fit, kInvalid where it breaks the protocol.
  Result<Step> Handshake();

  // An error is the end of the connection. It is kClosed, with different words for an end that the
  // other end announced and for one that anybody may have caused. It is kInvalid for bytes that
  // were changed on the way.
  Result<Moved> Read(std::span<std::byte> into);
  // Takes as many bytes as it has room for and sends as many as it can; also call it with nothing
  // to take.
  Result<Moved> Write(std::span<const iovec> from);
  // Read has more to give without another look at the socket.
  bool holds_input() const { return !in_.empty() || SSL_pending(ssl_.get()) > 0; }
  // Write still has bytes to send.
  bool owes() const { return out_begin_ < out_.size(); }
  // Announces the end of this connection, if the socket takes that at once.
  void SayGoodbye();

  // How often the other end has changed its keys.
  std::uint64_t keys_changed() const { return keys_changed_; }

 private:
  // The two ends that OpenSSL reads and writes, without a socket behind them.
  struct Bio;
  static void OnTlsMessage(int written, int version, int type, const void* bytes, std::size_t size,
                           SSL* ssl, void* stream);

  Result<Moved> Receive();
  Status Flush();
  Status Encrypt(const iovec& from, std::size_t& taken);
  Error WhyNot(int outcome);
  Error Fail(Error error);

  const int socket_;
  const std::span<std::byte> scratch_;
  const std::uint64_t records_per_key_;
  tls::SslPtr ssl_;
  std::span<const std::byte> in_;  // bytes in the scratch memory that are not decrypted yet
  std::vector<std::byte> out_;     // encrypted, from out_begin_ on; within its capacity
  std::size_t out_begin_ = 0;
  bool socket_empty_ = false;  // at the last look
  bool done_ = false;
  bool failed_ = false;
  std::uint64_t records_ = 0;       // sealed by the present key
  std::uint64_t bytes_read_ = 0;    // off the socket
  std::uint64_t keys_changed_ = 0;  // by the other end
};

}  // namespace lockstep::transport::tcp
