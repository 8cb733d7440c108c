// A TCP socket, plain or within TLS. Internal; one thread.
#pragma once

#include "transport/control/coroutines.h"

#include <boost/asio/buffer.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "transport/control/frame.h"
#include "transport/control/tls.h"
#include "transport/fork_guard.h"

namespace lockstep::transport::control {

class Stream {
 public:
  using Failure = boost::system::error_code;
  // The most TLS records that one key seals. AES-GCM is safe up to 2^24.5 (RFC 8446, 5.5), and
  // checkpoints are gigabytes.
  static constexpr std::uint64_t kRecordsPerKey = 1u << 22;

  // The socket must be connected.
  explicit Stream(boost::asio::ip::tcp::socket socket,
                  std::uint64_t records_per_key = kRecordsPerKey);
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  boost::asio::any_io_executor executor() { return socket_.get_executor(); }

  // Waits for the first byte and leaves it in the socket.
  boost::asio::awaitable<std::optional<unsigned char>> Peek(Failure& failure);
  // `on_hello`: for a server, as in tls::OnHelloOfKey.
  boost::asio::awaitable<Status> Secure(std::shared_ptr<TlsContext> tls, TlsRole role,
                                        std::function<void()> on_hello = nullptr);

  boost::asio::awaitable<std::size_t> ReadSome(boost::asio::mutable_buffer into, Failure& failure);
  boost::asio::awaitable<void> Write(const std::vector<boost::asio::const_buffer>& buffers,
                                     Failure& failure);
  // Sends as much as the socket takes without waiting. Returns 0 where that cannot be known (TLS)
  // or when the socket takes nothing. A failure here comes again in Write.
  std::size_t WriteNow(std::string_view bytes);
  // Sends `payload` as a frame, outside of TLS.
  boost::asio::awaitable<void> Tell(std::string_view payload);
  // Ends our side and discards input until the other end has closed its side. Closing with unread
  // bytes would throw away our last output, such as a refusal or an alert of TLS.
  boost::asio::awaitable<void> Drain();

  // Unread bytes are in the socket. It is also true at its end.
  bool HasUnread();
  void ShutdownSend();
  void Close();

  const std::string& remote() const { return remote_; }
  const std::string& local_host() const { return local_host_; }

 private:
  boost::asio::ip::tcp::socket socket_;
  ForkGuard guard_;
  std::shared_ptr<TlsContext> context_;
  std::unique_ptr<boost::asio::ssl::stream<boost::asio::ip::tcp::socket&>> tls_;
  const std::uint64_t records_per_key_;
  std::uint64_t records_ = 0;  // sealed by the present key, or fewer
  std::string remote_;
  std::string local_host_;
};

// "10.0.0.1:7070", "[::1]:7070".
std::string Shown(const boost::asio::ip::tcp::endpoint& endpoint);

// The reason for the end of a connection, in words for people.
Error WhyEnded(const boost::system::error_code& failure);

}  // namespace lockstep::transport::control
