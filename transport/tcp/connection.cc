#include "transport/tcp/connection.h"

#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <utility>

#include "base/check.h"
#include "transport/acceptor.h"

namespace lockstep::transport::tcp {
namespace {

// The most bytes of one turn, before other connections, timers and tasks have theirs. Longer turns
// fill the sockets with more than the caches hold before the other direction gets its turn.
constexpr std::size_t kTurnBytes = 1u << 20;
// The most bytes of one call: so few that both ends of a connection copy at the same time, out of
// the cache.
constexpr std::size_t kCallBytes = 512u << 10;

// Cuts the vectors to kCallBytes and returns how much is left.
std::size_t CutToOneCall(std::span<iovec> vectors) {
  std::size_t total = 0;
  for (iovec& vector : vectors) {
    vector.iov_len = std::min(vector.iov_len, kCallBytes - total);
    total += vector.iov_len;
  }
  return total;
}

// Between hosts, small messages and requests wait behind the bytes that were written before them
// and have not left yet. Until requests arrive, the other direction of the link has nothing to
// carry. So no more than this is written ahead: a millisecond of 1 Gbit/s.
constexpr int kWrittenAhead = 128 << 10;
// A piece also goes out in frames of this size, with small messages in between.
constexpr std::size_t kPieceFrameBytes = 128u << 10;

bool OnOneHost(const Connection::Socket& socket) {
  boost::system::error_code local_error;
  boost::system::error_code remote_error;
  const auto local = socket.local_endpoint(local_error);
  const auto remote = socket.remote_endpoint(remote_error);
  return !local_error && !remote_error && local.address() == remote.address();
}

// The kernel still decides how much may be unacknowledged, so the rate stays that of the path.
// Where the option is unknown, small messages wait longer.
void KeepQueueShort(Connection::Socket& socket) {
  (void)::setsockopt(socket.native_handle(), IPPROTO_TCP, TCP_NOTSENT_LOWAT, &kWrittenAhead,
                     sizeof(kWrittenAhead));
}

// Both ends are on one machine: there is no path to probe, and pacing (bbr, the default of many
// systems) costs 10 to 30 % of the CPU time per byte. The kernel tunes the buffers: fixed ones cost
// the receiver more wake-ups.
void TuneForOneHost(Connection::Socket& socket) {
  constexpr std::string_view kAlgorithm = "reno";
  // Where it is not allowed, the default stays.
  (void)::setsockopt(socket.native_handle(), IPPROTO_TCP, TCP_CONGESTION, kAlgorithm.data(),
                     kAlgorithm.size());
}

// A host that has gone sends nothing. Without these options a connection to it ends in a quarter of
// an hour, or never where nothing is sent.
void BoundSilence(Connection::Socket& socket, Duration timeout) {
  using std::chrono::seconds;
  const auto bound = std::max(std::chrono::ceil<std::chrono::milliseconds>(timeout),
                              std::chrono::milliseconds(seconds(1)));
  const auto set = [&](int level, int option, std::int64_t value) {
    const int number = static_cast<int>(std::min<std::int64_t>(value, 1 << 30));
    (void)::setsockopt(socket.native_handle(), level, option, &number, sizeof(number));
  };
  // The bound for sent bytes that are not acknowledged or taken; with keep-alive, for unanswered
  // probes.
  set(IPPROTO_TCP, TCP_USER_TIMEOUT, bound.count());
  constexpr int kProbes = 4;
  // The kernel accepts no more than nine hours.
  const auto interval = std::clamp(std::chrono::ceil<seconds>(bound / kProbes), seconds(1),
                                   seconds(std::chrono::hours(9)));
  set(IPPROTO_TCP, TCP_KEEPIDLE, interval.count());
  set(IPPROTO_TCP, TCP_KEEPINTVL, interval.count());
  set(IPPROTO_TCP, TCP_KEEPCNT, kProbes);
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
}

// The type of the record that begins a TLS handshake. A greeting begins with a smaller or larger
// length.
constexpr unsigned char kTlsHandshakeRecord = 0x16;

}  // namespace

Connection::Connection(ConnectionOwner& owner, Socket socket, std::optional<MemberId> whom,
                       const ConnectionPlace& place)
    : owner_(owner),
      socket_(std::move(socket)),
      greeting_timer_(socket_.get_executor()),
      whom_(whom),
      handshake_(whom ? Handshake::Role::kConnector : Handshake::Role::kAcceptor,
                 owner.options().self, owner.options().job_key, whom),
      place_(place),
      inbox_(owner.scratch()) {
  if (socket_.is_open()) guard_ = ForkGuard(socket_.native_handle());
}

void Connection::StartTimer(const char* too_late) {
  greeting_timer_.expires_after(owner_.options().connect_timeout);
  greeting_timer_.async_wait(
      [self = shared_from_this(), too_late](boost::system::error_code error) {
        if (error || !self->alive() || self->begun()) return;
        self->End(Error{ErrorCode::kTimeout, self->state_ == State::kForming
                                                 ? "not all connections were there in time"
                                                 : too_late});
      });
}

void Connection::StartConnecting(const Endpoint& endpoint) {
  StartTimer("no answer in time");
  boost::system::error_code failure;
  OpenSocket(socket_, endpoint.protocol(), failure);
  if (!failure) guard_ = ForkGuard(socket_.native_handle());
  socket_.async_connect(endpoint, [self = shared_from_this()](boost::system::error_code error) {
    if (self->state_ != State::kGreeting) return;
    if (error) {
      self->End(Error{ErrorCode::kUnavailable, error.message()});
      return;
    }
    self->StartGreeting();
  });
}

void Connection::StartAccepted() {
  StartTimer("no greeting in time");
  StartGreeting();
}

void Connection::Begin(PeerId peer) {
  LOCKSTEP_CHECK(alive() && !begun(), "a connection begins once");
  greeting_timer_.cancel();
  peer_ = peer;
  state_ = State::kUp;
  if (place_.connections == 1 || !whom_) return;
  outbox_.PushSmall(FrameType::kBegin, 0, {});
  ScheduleFlush();
}

void Connection::StartGreeting() {
  boost::system::error_code error;
  socket_.non_blocking(true, error);
  if (!error) socket_.set_option(boost::asio::ip::tcp::no_delay(true), error);
  if (error) {
    End(Error{ErrorCode::kUnavailable, error.message()});
    return;
  }
  if (OnOneHost(socket_)) {
    TuneForOneHost(socket_);
  } else {
    KeepQueueShort(socket_);
    outbox_.CutPieces(kPieceFrameBytes);
  }
  BoundSilence(socket_, owner_.options().silence_timeout);
  const auto role = whom_ ? tls::Role::kClient : tls::Role::kServer;
  if (SSL_CTX* context = owner_.tls(role)) {
    tls_.emplace(*context, role, socket_.native_handle(), owner_.tls_scratch());
  }
  // The first input shows whether it is TLS.
  if (!whom_) return WaitReadable();
  if (tls_) return OnReadable();
  Greet();
  WaitReadable();
}

bool Connection::CheckFirstByte() {
  unsigned char first = 0;
  const ssize_t got = ::recv(socket_.native_handle(), &first, 1, MSG_PEEK | MSG_DONTWAIT);
  if (got != 1) return true;  // the read reports the reason
  first_byte_checked_ = true;
  const bool encrypts = first == kTlsHandshakeRecord;
  if (encrypts == tls_.has_value()) return true;
  const std::string reason =
      fmt::format("{} {} (exchange.encryption), the other end {}", Describe(owner_.options().self),
                  encrypts ? "does not encrypt" : "encrypts", encrypts ? "does" : "does not");
  // It goes in plain text: the other end reads it, or sees that it is not TLS.
  tls_.reset();
  outbox_.PushSmall(FrameType::kHandshake, 0, Handshake::Refusal(reason));
  SendFarewell();
  // Unread bytes would make the kernel reset the connection, and the text would be lost.
  (void)!::recv(socket_.native_handle(), owner_.scratch().data(), owner_.scratch().size(),
                MSG_DONTWAIT);
  End(Error{ErrorCode::kRefused, reason});
  return false;
}

bool Connection::Secure() {
  const auto step = tls_->Handshake();
  if (!step) {
    End(step.error());
    return false;
  }
  switch (*step) {
    case TlsStream::Step::kDone:
      return true;
    case TlsStream::Step::kWantsRead:
      WaitReadable();
      return false;
    case TlsStream::Step::kWantsWrite:
      WaitWritable();
      return false;
  }
  return false;
}

void Connection::Greet() {
  greeting_begun_ = true;
  const std::vector<std::byte> hello = handshake_.Begin();
  if (!hello.empty()) outbox_.PushSmall(FrameType::kHandshake, 0, hello);
  ScheduleFlush();
}

PathReport Connection::path() const {
  if (!tls_) return {.text = "tcp"};
  return {.text = "tcp (TLS 1.3)", .encrypted = true};
}

void Connection::WaitReadable() {
  socket_.async_wait(Socket::wait_read,
                     [self = shared_from_this()](boost::system::error_code error) {
                       if (!error) self->OnReadable();
                     });
}

void Connection::WaitWritable() {
  waiting_writable_ = true;
  socket_.async_wait(Socket::wait_write,
                     [self = shared_from_this()](boost::system::error_code error) {
                       self->waiting_writable_ = false;
                       if (!error) self->Flush();
                     });
}

Result<Moved> Connection::Read(std::span<iovec> into) {
  // The next read takes the bytes of the next vector.
  if (tls_) {
    return tls_->Read(std::span(static_cast<std::byte*>(into[0].iov_base), into[0].iov_len));
  }
  const std::size_t room = CutToOneCall(into);
  msghdr message{};
  message.msg_iov = into.data();
  message.msg_iovlen = into.size();
  for (;;) {
    const ssize_t got = ::recvmsg(socket_.native_handle(), &message, MSG_DONTWAIT);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return Moved{.blocked = true};
    if (got < 0) return SocketError("read", errno);
    if (got == 0) return Error{ErrorCode::kClosed, "the other end closed the connection"};
    const auto bytes = static_cast<std::size_t>(got);
    // A short read has emptied the socket; the wait sees later bytes.
    return Moved{.bytes = bytes, .blocked = bytes < room};
  }
}

void Connection::OnReadable() {
  if (!alive()) return;
  if (!greeting_begun_) {
    if (!whom_ && !first_byte_checked_ && !CheckFirstByte()) return;
    if (tls_ && !Secure()) return;
    Greet();
  }
  std::size_t read_now = 0;
  while (alive()) {
    // With one piece in each direction it goes out before the other is read, so that both ends copy
    // at the same time. With many pieces they take turns anyway, and more bytes in the sockets
    // would leave the caches. Encrypted input is read to its end first, see below.
    if (std::exchange(lone_answer_, false) && !waiting_writable_ && !tls_) {
      Flush();
      continue;
    }
    std::array<iovec, Inbox::kMaxVectors> vectors{};
    const std::size_t count = inbox_.Space(vectors, live_fetches_ > 0);
    const auto got = Read(std::span(vectors).first(count));
    if (!got) {
      End(got.error());
      return;
    }
    if (got->bytes > 0) {
      last_heard_ = MonotonicNow();
      inbox_.Filled(got->bytes);
      if (!HandleFrames()) return;
      read_now += got->bytes;
    }
    // Encrypted input lies in memory that the next connection uses, so all of it is handled in this
    // turn.
    if (got->blocked || (read_now >= kTurnBytes && !(tls_ && tls_->holds_input()))) break;
  }
  if (!alive()) return;
  if (tls_ && tls_->owes()) ScheduleFlush();
  WaitReadable();
}

void Connection::ScheduleFlush() {
  if (flush_scheduled_ || waiting_writable_) return;
  flush_scheduled_ = true;
  boost::asio::post(socket_.get_executor(), [self = shared_from_this()] {
    self->flush_scheduled_ = false;
    if (!self->waiting_writable_) self->Flush();
  });
}

Result<Moved> Connection::Write(std::span<iovec> from) {
  if (tls_) return tls_->Write(from);
  CutToOneCall(from);
  msghdr message{};
  message.msg_iov = from.data();
  message.msg_iovlen = from.size();
  for (;;) {
    const ssize_t put = ::sendmsg(socket_.native_handle(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (put >= 0) return Moved{.bytes = static_cast<std::size_t>(put)};
    if (errno == EAGAIN || errno == EWOULDBLOCK) return Moved{.blocked = true};
    if (errno != EINTR) return SocketError("write", errno);
  }
}

void Connection::Flush() {
  // The TLS handshake has waited for it.
  if (!greeting_begun_) return OnReadable();
  std::size_t written_now = 0;
  while (alive()) {
    std::array<iovec, Outbox::kMaxVectors> vectors{};
    const std::size_t count = outbox_.Gather(vectors);
    if (count == 0 && !(tls_ && tls_->owes())) return;
    const auto put = Write(std::span(vectors).first(count));
    if (!put) {
      End(put.error());
      return;
    }
    const auto done = outbox_.Wrote(put->bytes);
    if (done && done->have) owner_.handler().OnServed(peer_, done->cookie);
    if (put->blocked) {
      if (alive()) WaitWritable();
      return;
    }
    written_now += put->bytes;
    if (written_now >= kTurnBytes) {
      ScheduleFlush();
      return;
    }
  }
}

bool Connection::Send(std::span<const std::byte> bytes) {
  const std::size_t after = outbox_.small_bytes() + kHeaderBytes + bytes.size();
  if (state_ != State::kUp || after > owner_.options().send_queue_bytes) return false;
  outbox_.PushSmall(FrameType::kMessage, 0, bytes);
  ScheduleFlush();
  return true;
}

void Connection::Fetch(FetchId fetch, const PieceName& name, std::span<std::byte> destination) {
  LOCKSTEP_CHECK(state_ == State::kUp, "a fetch over a connection that is not up");
  ++live_fetches_;
  bytes_awaited_ += destination.size();
  fetches_.push_back({.id = fetch, .destination = destination});
  outbox_.PushSmall(FrameType::kFetch, fetch.value, EncodePieceName(name));
  ScheduleFlush();
}

bool Connection::GiveUp(FetchId id) {
  const auto fetch = Find(id.value);
  if (fetch == fetches_.end()) return false;
  if (fetch->given_up || !alive()) return true;
  fetch->given_up = true;
  fetch->owes_given_up = true;
  --live_fetches_;
  if (inbox_.InBodyOf(id.value)) {
    inbox_.DropDestination();
  } else {
    outbox_.PushSmall(FrameType::kCancel, id.value, {});
    ScheduleFlush();
  }
  boost::asio::post(socket_.get_executor(), [self = shared_from_this(), id] {
    if (self->alive()) self->TellGivenUp(id);
  });
  return true;
}

void Connection::CloseLater(std::string reason) {
  if (!alive()) return;
  state_ = State::kEnding;
  boost::asio::post(socket_.get_executor(),
                    [self = shared_from_this(), reason = std::move(reason)]() mutable {
                      self->End(Error{ErrorCode::kClosed, std::move(reason)});
                    });
}

void Connection::End(const Error& reason) {
  if (state_ == State::kEnded) return;
  const bool had_begun = begun();
  state_ = State::kEnded;
  const auto self = shared_from_this();  // the owner lets go of it below
  boost::system::error_code ignored;
  greeting_timer_.cancel(ignored);
  if (tls_) tls_->SayGoodbye();
  guard_.Release();
  socket_.close(ignored);
  if (!had_begun) {
    owner_.OnGreetingFailed(*this, reason);
    return;
  }
  while (!fetches_.empty()) FinishFetch(fetches_.begin(), FetchStatus::kPeerDown);
  for (const Outbox::Answer& answer : outbox_.Withdraw()) {
    if (answer.have) owner_.handler().OnServed(peer_, answer.cookie);
  }
  for (const Deferred& later : std::exchange(deferred_, {})) {
    owner_.handler().OnServed(peer_, later.cookie);
  }
  owner_.OnDown(*this, reason);
}

}  // namespace lockstep::transport::tcp
