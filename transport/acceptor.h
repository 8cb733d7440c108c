// Our TCP sockets. Programs that this process starts do not inherit them, and a listening socket
// survives all errors, also when descriptors run out.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <functional>
#include <memory>
#include <string>

namespace lockstep::transport {

// Opens like the socket's own open().
void OpenSocket(boost::asio::ip::tcp::socket& socket, const boost::asio::ip::tcp& protocol,
                boost::system::error_code& error);

// The key under which connections share the places of Places: an IPv4 address, or the network (/64)
// of an IPv6 one.
std::string AddressKey(const boost::asio::ip::tcp::socket& socket);

// Belongs to the one thread that runs the io_context; callbacks come on it and may destroy it.
class Acceptor {
 public:
  struct Handler {
    std::function<void(boost::asio::ip::tcp::socket)> on_connection;
    // Called when there is no descriptor or no memory for a waiting connection, with the reason. It
    // is called once, until a connection is accepted again; meanwhile accepting is tried now and
    // then.
    std::function<void(const std::string&)> on_exhausted;
  };

  // `socket` is null where `error` is set.
  static std::unique_ptr<Acceptor> Listen(boost::asio::io_context& io,
                                          const boost::asio::ip::tcp::endpoint& at, Handler handler,
                                          boost::system::error_code& error);
  // No callback comes after it, and nothing waits for this object.
  ~Acceptor();
  Acceptor(const Acceptor&) = delete;
  Acceptor& operator=(const Acceptor&) = delete;

  boost::asio::ip::tcp::endpoint endpoint() const;

  // Newcomers wait in the kernel until Resume.
  void Hold();
  void Resume();

 private:
  struct Impl;
  explicit Acceptor(std::shared_ptr<Impl> impl);
  std::shared_ptr<Impl> impl_;
};

}  // namespace lockstep::transport
