#include "transport/control/stream.h"

#include <poll.h>
#include <sys/socket.h>

#include <boost/asio/ssl/error.hpp>
#include <boost/asio/write.hpp>

namespace lockstep::transport::control {

namespace asio = boost::asio;
using asio::redirect_error;
using asio::use_awaitable;
using asio::ip::tcp;

namespace {
// Boost.Asio joins small buffers up to so many bytes; a long one goes in records of twice as many.
constexpr std::size_t kLeastOfARecord = 8192;
}  // namespace

std::string Shown(const tcp::endpoint& endpoint) {
  const std::string host = endpoint.address().to_string();
  const std::string port = std::to_string(endpoint.port());
  return endpoint.address().is_v6() ? "[" + host + "]:" + port : host + ":" + port;
}

Error WhyEnded(const boost::system::error_code& failure) {
  const bool closed = failure == asio::error::eof || failure == asio::ssl::error::stream_truncated;
  return {ErrorCode::kClosed, closed ? "the other end closed the connection" : failure.message()};
}

Stream::Stream(tcp::socket socket, std::uint64_t records_per_key)
    : socket_(std::move(socket)),
      guard_(socket_.native_handle()),
      records_per_key_(records_per_key) {
  Failure ignored;
  socket_.set_option(tcp::no_delay(true), ignored);
  remote_ = Shown(socket_.remote_endpoint(ignored));
  local_host_ = socket_.local_endpoint(ignored).address().to_string();
}

asio::awaitable<std::optional<unsigned char>> Stream::Peek(Failure& failure) {
  co_await socket_.async_wait(tcp::socket::wait_read, redirect_error(use_awaitable, failure));
  if (failure) co_return std::nullopt;
  unsigned char first = 0;
  const std::size_t got =
      socket_.receive(asio::buffer(&first, 1), tcp::socket::message_peek, failure);
  if (failure || got == 0) co_return std::nullopt;
  co_return first;
}

asio::awaitable<Status> Stream::Secure(std::shared_ptr<TlsContext> tls, TlsRole role,
                                       std::function<void()> on_hello) {
  context_ = std::move(tls);
  tls_ = std::make_unique<asio::ssl::stream<tcp::socket&>>(socket_, context_->context());
  if (on_hello) tls::OnHelloOfKey(tls_->native_handle(), on_hello);
  Failure failure;
  co_await tls_->async_handshake(
      role == TlsRole::kServer ? asio::ssl::stream_base::server : asio::ssl::stream_base::client,
      redirect_error(use_awaitable, failure));
  SSL_set_info_callback(tls_->native_handle(), nullptr);
  if (failure) co_return Status(TlsContext::Explain(failure));
  if (!tls::ProvenByKey(tls_->native_handle())) {
    co_return Status(Error{ErrorCode::kRefused, "the other end did not prove the secret"});
  }
  co_return Status();
}

asio::awaitable<std::size_t> Stream::ReadSome(asio::mutable_buffer into, Failure& failure) {
  if (tls_) {
    co_return co_await tls_->async_read_some(into, redirect_error(use_awaitable, failure));
  }
  co_return co_await socket_.async_read_some(into, redirect_error(use_awaitable, failure));
}

asio::awaitable<void> Stream::Write(const std::vector<asio::const_buffer>& buffers,
                                    Failure& failure) {
  if (tls_) {
    if (records_ >= records_per_key_) {
      records_ = 0;
      // It goes out before the next data.
      if (SSL_key_update(tls_->native_handle(), SSL_KEY_UPDATE_NOT_REQUESTED) != 1) {
        failure = asio::error::connection_aborted;
        co_return;
      }
    }
    for (const asio::const_buffer& buffer : buffers) {
      records_ += buffer.size() / kLeastOfARecord + 1;
    }
    co_await asio::async_write(*tls_, buffers, redirect_error(use_awaitable, failure));
  } else {
    co_await asio::async_write(socket_, buffers, redirect_error(use_awaitable, failure));
  }
}

std::size_t Stream::WriteNow(std::string_view bytes) {
  if (tls_ || !socket_.is_open()) return 0;
  const ssize_t sent =
      ::send(socket_.native_handle(), bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  return sent > 0 ? static_cast<std::size_t>(sent) : 0;
}

asio::awaitable<void> Stream::Tell(std::string_view payload) {
  const std::string frame = FrameOf(payload);
  Failure failure;
  co_await asio::async_write(socket_, asio::buffer(frame), redirect_error(use_awaitable, failure));
}

asio::awaitable<void> Stream::Drain() {
  ShutdownSend();
  Failure failure;
  std::vector<std::byte> scrap(4096);
  while (!failure) {
    co_await socket_.async_read_some(asio::buffer(scrap), redirect_error(use_awaitable, failure));
  }
}

bool Stream::HasUnread() {
  if (!socket_.is_open()) return false;
  ::pollfd descriptor{socket_.native_handle(), POLLIN, 0};
  return ::poll(&descriptor, 1, 0) > 0;
}

void Stream::ShutdownSend() {
  Failure ignored;
  socket_.shutdown(tcp::socket::shutdown_send, ignored);
}

void Stream::Close() {
  Failure ignored;
  guard_.Release();
  socket_.close(ignored);
}

}  // namespace lockstep::transport::control
