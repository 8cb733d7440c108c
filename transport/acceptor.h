// TCP sockets of ours: opened so that no program which this process starts inherits them, and a
// listening one that survives whatever comes, running out of descriptors included.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <functional>
#include <memory>
#include <string>

namespace lockstep::transport {

// As the socket's own open().
void OpenSocket(boost::asio::ip::tcp::socket& socket, const boost::asio::ip::tcp& protocol,
                boost::system::error_code& error);

// For Places: who shares a place with whom. An IPv4 address, or the network (/64) of an IPv6 one.
std::string AddressKey(const boost::asio::ip::tcp::socket& socket);

// Belongs to the one thread that runs the io_context; callbacks come on it and may destroy it.
class Acceptor {
 public:
  struct Handler {
    std::function<void(boost::asio::ip::tcp::socket)> on_connection;
    // There is no descriptor or no memory for a connection that waits: why. Once, until one is
    // accepted again; meanwhile it is tried now and then.
    std::function<void(const std::string&)> on_exhausted;
  };

  // Null where `error` is set.
  static std::unique_ptr<Acceptor> Listen(boost::asio::io_context& io,
                                          const boost::asio::ip::tcp::endpoint& at, Handler handler,
                                          boost::system::error_code& error);
  // No callback comes any more, and nothing waits for this object.
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
