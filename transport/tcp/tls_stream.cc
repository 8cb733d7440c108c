#include "transport/tcp/tls_stream.h"

#include <fmt/format.h>
#include <openssl/bio.h>
#include <openssl/err.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/check.h"

namespace lockstep::transport::tcp {
namespace {

constexpr std::size_t kRecordBytes = SSL3_RT_MAX_PLAIN_LENGTH;
constexpr std::size_t kOverheadBytes = 64;  // of a record: 22
// Records that are sent by one call: more of them leave the cache before they are sent.
constexpr std::size_t kRecordsOfACall = 4;
// A reserve for OpenSSL's own output: new keys, alerts.
constexpr std::size_t kReserveBytes = 1024;
constexpr std::size_t kOutBytes = kRecordsOfACall * (kRecordBytes + kOverheadBytes) + kReserveBytes;
// A handshake takes some 400 bytes of each end.
constexpr std::uint64_t kMostHandshakeBytes = 4096;
// The most key changes of a peer at once: new keys are expensive.
constexpr std::uint64_t kKeyChangesAtOnce = 16;
constexpr std::uint64_t kBytesOfAKeyChange = 1u << 20;

}  // namespace

Error SocketError(const char* doing, int error) {
  return {ErrorCode::kClosed, fmt::format("{}: {}", doing, std::strerror(error))};
}

struct TlsStream::Bio {
  static int Read(BIO* bio, char* into, int size) {
    auto& stream = *static_cast<TlsStream*>(BIO_get_data(bio));
    BIO_clear_retry_flags(bio);
    const std::size_t bytes = std::min(stream.in_.size(), static_cast<std::size_t>(size));
    if (bytes == 0) {
      BIO_set_retry_read(bio);
      return -1;
    }
    std::memcpy(into, stream.in_.data(), bytes);
    stream.in_ = stream.in_.subspan(bytes);
    return static_cast<int>(bytes);
  }

  static int Write(BIO* bio, const char* from, int size) {
    auto& stream = *static_cast<TlsStream*>(BIO_get_data(bio));
    BIO_clear_retry_flags(bio);
    const auto bytes = std::as_bytes(std::span(from, static_cast<std::size_t>(size)));
    // Encryption starts only with enough room; a larger output comes from a peer's demands.
    if (stream.out_.size() + bytes.size() > kOutBytes) return -1;
    stream.out_.insert(stream.out_.end(), bytes.begin(), bytes.end());
    return size;
  }

  static long Control(BIO* /*bio*/, int command, long /*number*/, void* /*pointer*/) {
    return command == BIO_CTRL_FLUSH ? 1 : 0;
  }

  static BIO* Make(TlsStream* stream) {
    static BIO_METHOD* const method = [] {
      BIO_METHOD* made = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "lockstep");
      LOCKSTEP_CHECK(made != nullptr && BIO_meth_set_read(made, Read) == 1 &&
                         BIO_meth_set_write(made, Write) == 1 &&
                         BIO_meth_set_ctrl(made, Control) == 1,
                     "no memory for TLS");
      return made;
    }();
    BIO* bio = BIO_new(method);
    LOCKSTEP_CHECK(bio != nullptr, "no memory for TLS");
    BIO_set_data(bio, stream);
    BIO_set_init(bio, 1);
    return bio;
  }
};

TlsStream::TlsStream(SSL_CTX& context, tls::Role role, int socket, std::span<std::byte> scratch,
                     std::uint64_t records_per_key)
    : socket_(socket),
      scratch_(scratch),
      records_per_key_(records_per_key),
      ssl_(SSL_new(&context)) {
  LOCKSTEP_CHECK(ssl_ != nullptr, "no memory for TLS");
  SSL_set0_rbio(ssl_.get(), Bio::Make(this));
  SSL_set_msg_callback(ssl_.get(), OnTlsMessage);
  SSL_set_msg_callback_arg(ssl_.get(), this);
  SSL_set0_wbio(ssl_.get(), Bio::Make(this));
  if (role == tls::Role::kServer) {
    SSL_set_accept_state(ssl_.get());
  } else {
    SSL_set_connect_state(ssl_.get());
  }
}

TlsStream::~TlsStream() = default;

void TlsStream::OnTlsMessage(int written, int /*version*/, int type, const void* bytes,
                             std::size_t size, SSL* /*ssl*/, void* stream) {
  const auto* message = static_cast<const unsigned char*>(bytes);
  if (written == 0 && type == SSL3_RT_HANDSHAKE && size > 0 && message[0] == SSL3_MT_KEY_UPDATE) {
    ++static_cast<TlsStream*>(stream)->keys_changed_;
  }
}

Error TlsStream::Fail(Error error) {
  failed_ = true;
  return error;
}

Error TlsStream::WhyNot(int outcome) {
  const unsigned long code = ERR_peek_last_error();
  const int what = SSL_get_error(ssl_.get(), outcome);
  if (what == SSL_ERROR_ZERO_RETURN) {
    return Fail({ErrorCode::kClosed, "the other end closed the connection"});
  }
  if (what == SSL_ERROR_WANT_WRITE || (what == SSL_ERROR_SYSCALL && code == 0)) {
    return Fail({ErrorCode::kInvalid, "protocol error of the other end: it asks for too much"});
  }
  switch (ERR_GET_REASON(code)) {
    case SSL_R_BINDER_DOES_NOT_VERIFY:
    case SSL_R_BAD_PSK:
    case SSL_R_SSLV3_ALERT_ILLEGAL_PARAMETER:  // the alert that the other end sends then
    case SSL_R_TLSV1_ALERT_DECRYPT_ERROR:
      return Fail({ErrorCode::kRefused, "the other end does not have the same job key"});
    case SSL_R_WRONG_VERSION_NUMBER:
      if (done_) break;
      return Fail({ErrorCode::kRefused,
                   "this end encrypts (exchange.encryption = on), the other does not"});
    case SSL_R_DECRYPTION_FAILED_OR_BAD_RECORD_MAC:
      return Fail({ErrorCode::kInvalid, "bytes from the other end were changed on the way"});
    case SSL_R_SSLV3_ALERT_BAD_RECORD_MAC:
      return Fail({ErrorCode::kInvalid, "bytes to the other end were changed on the way"});
    default:
      break;
  }
  const char* reason = ERR_reason_error_string(code);
  return Fail({ErrorCode::kInvalid, fmt::format("TLS{}: {}", done_ ? "" : " handshake",
                                                reason == nullptr ? "it failed" : reason)});
}

// Returns `blocked` where nothing is there, else the number of bytes.
Result<Moved> TlsStream::Receive() {
  if (std::exchange(socket_empty_, false)) return Moved{.blocked = true};
  for (;;) {
    const ssize_t got = ::recv(socket_, scratch_.data(), scratch_.size(), MSG_DONTWAIT);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return Moved{.blocked = true};
    if (got < 0) return Fail(SocketError("read", errno));
    if (got == 0) {
      return Fail(
          {ErrorCode::kClosed, done_ ? "the connection was cut, the other end has not closed it"
                                     : "the other end closed the connection during the "
                                       "TLS handshake"});
    }
    const auto bytes = static_cast<std::size_t>(got);
    in_ = std::span<const std::byte>(scratch_).first(bytes);
    bytes_read_ += bytes;
    // A short read has emptied the socket; the wait sees later bytes.
    socket_empty_ = bytes < scratch_.size();
    return Moved{.bytes = bytes};
  }
}

Result<TlsStream::Step> TlsStream::Handshake() {
  LOCKSTEP_CHECK(!done_ && !failed_, "the TLS handshake is over");
  for (;;) {
    ERR_clear_error();
    const int outcome = SSL_do_handshake(ssl_.get());
    const int what = SSL_get_error(ssl_.get(), outcome);
    if (what != SSL_ERROR_NONE && what != SSL_ERROR_WANT_READ && what != SSL_ERROR_WANT_WRITE) {
      return WhyNot(outcome);
    }
    if (Status flushed = Flush(); !flushed) return flushed.error();
    if (what == SSL_ERROR_NONE) break;
    if (what == SSL_ERROR_WANT_WRITE || owes()) return Step::kWantsWrite;
    if (bytes_read_ > kMostHandshakeBytes) {
      return Fail({ErrorCode::kInvalid, "a TLS handshake of that length"});
    }
    const auto came = Receive();
    if (!came) return came.error();
    if (came->blocked) return Step::kWantsRead;
  }
  if (!tls::ProvenByKey(ssl_.get())) {
    return Fail({ErrorCode::kRefused, "the other end does not prove the job key"});
  }
  done_ = true;
  out_.reserve(kOutBytes);
  return Step::kDone;
}

Result<Moved> TlsStream::Read(std::span<std::byte> into) {
  LOCKSTEP_CHECK(done_ && !failed_, "no TLS connection");
  for (;;) {
    ERR_clear_error();
    std::size_t bytes = 0;
    const int outcome = SSL_read_ex(ssl_.get(), into.data(), into.size(), &bytes);
    if (keys_changed_ > kKeyChangesAtOnce + bytes_read_ / kBytesOfAKeyChange) {
      return Fail({ErrorCode::kInvalid,
                   "protocol error of the other end: it changes its keys all the time"});
    }
    if (outcome == 1) return Moved{.bytes = bytes};
    if (SSL_get_error(ssl_.get(), outcome) != SSL_ERROR_WANT_READ) return WhyNot(outcome);
    const auto came = Receive();
    if (!came || came->blocked) return came;
  }
}

Status TlsStream::Flush() {
  while (owes()) {
    const auto left = std::span<const std::byte>(out_).subspan(out_begin_);
    const ssize_t put = ::send(socket_, left.data(), left.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (put < 0 && errno == EINTR) continue;
    if (put < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return {};
    if (put < 0) return Fail(SocketError("write", errno));
    out_begin_ += static_cast<std::size_t>(put);
  }
  out_.clear();
  out_begin_ = 0;
  return {};
}

// Encrypts records out of `from` as long as there is room.
Status TlsStream::Encrypt(const iovec& from, std::size_t& taken) {
  const auto* bytes = static_cast<const std::byte*>(from.iov_base);
  for (std::size_t at = 0; at < from.iov_len;) {
    if (out_.size() + kRecordBytes + kOverheadBytes + kReserveBytes > kOutBytes) return {};
    ERR_clear_error();
    if (records_ == records_per_key_) {
      if (SSL_key_update(ssl_.get(), SSL_KEY_UPDATE_NOT_REQUESTED) != 1) return WhyNot(0);
      records_ = 0;
    }
    std::size_t put = 0;
    const int outcome =
        SSL_write_ex(ssl_.get(), bytes + at, std::min(from.iov_len - at, kRecordBytes), &put);
    if (outcome != 1) return WhyNot(outcome);
    ++records_;
    at += put;
    taken += put;
  }
  return {};
}

Result<Moved> TlsStream::Write(std::span<const iovec> from) {
  LOCKSTEP_CHECK(done_ && !failed_, "no TLS connection");
  std::size_t taken = 0;
  if (Status flushed = Flush(); !flushed) return flushed.error();
  if (!owes()) {
    for (const iovec& vector : from) {
      const std::size_t before = taken;
      if (Status sealed = Encrypt(vector, taken); !sealed) return sealed.error();
      if (taken - before < vector.iov_len) break;
    }
    if (Status flushed = Flush(); !flushed) return flushed.error();
  }
  return Moved{.bytes = taken, .blocked = owes()};
}

void TlsStream::SayGoodbye() {
  ERR_clear_error();
  // After a failure OpenSSL has sent the reason, or must not be asked.
  if (done_ && !failed_) (void)SSL_shutdown(ssl_.get());
  // A courtesy: whether it arrives changes nothing here.
  if (owes()) {
    const auto left = std::span<const std::byte>(out_).subspan(out_begin_);
    (void)::send(socket_, left.data(), left.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  }
}

}  // namespace lockstep::transport::tcp
