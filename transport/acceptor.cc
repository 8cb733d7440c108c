#include "transport/acceptor.h"

#include <sys/socket.h>
#include <unistd.h>

#include <boost/asio/steady_timer.hpp>
#include <cerrno>
#include <system_error>
#include <utility>

#include "transport/fork_guard.h"

namespace lockstep::transport {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using Failure = boost::system::error_code;

// After so many connections, others on the same thread have their turn.
constexpr int kAtOnce = 16;
// How long accepting rests after descriptors have run out.
constexpr auto kRest = std::chrono::milliseconds(100);

Failure LastFailure() { return {errno, boost::system::system_category()}; }

template <class Socket>
void OpenFor(Socket& socket, const tcp& protocol, Failure& error) {
  const int fd = ::socket(protocol.family(), SOCK_STREAM | SOCK_CLOEXEC, IPPROTO_TCP);
  if (fd < 0) {
    error = LastFailure();
    return;
  }
  socket.assign(protocol, fd, error);
  if (error) ::close(fd);
}

bool HasNoRoom(int error) {
  return error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM;
}

}  // namespace

void OpenSocket(tcp::socket& socket, const tcp& protocol, Failure& error) {
  OpenFor(socket, protocol, error);
}

std::string AddressKey(const tcp::socket& socket) {
  Failure failure;
  const asio::ip::address address = socket.remote_endpoint(failure).address();
  if (!address.is_v6()) return address.to_string();
  if (address.to_v6().is_v4_mapped()) {
    return asio::ip::make_address_v4(asio::ip::v4_mapped, address.to_v6()).to_string();
  }
  asio::ip::address_v6::bytes_type bytes = address.to_v6().to_bytes();
  for (std::size_t i = 8; i < bytes.size(); ++i) bytes[i] = 0;
  return asio::ip::address_v6(bytes).to_string() + "/64";
}

struct Acceptor::Impl : std::enable_shared_from_this<Acceptor::Impl> {
  Impl(asio::io_context& io, Handler callbacks)
      : acceptor(io), rest(io), handler(std::make_shared<const Handler>(std::move(callbacks))) {}

  void Open(const tcp::endpoint& at, Failure& error) {
    OpenFor(acceptor, at.protocol(), error);
    if (!error) guard = ForkGuard(acceptor.native_handle());
    if (!error) acceptor.set_option(asio::socket_base::reuse_address(true), error);
    if (!error) acceptor.native_non_blocking(true, error);
    if (!error) acceptor.bind(at, error);
    if (!error) acceptor.listen(asio::socket_base::max_listen_connections, error);
    if (!error) Wait();
  }

  void Close() {
    handler = nullptr;
    rest.cancel();
    Failure ignored;
    guard.Release();
    acceptor.close(ignored);
  }

  void Wait() {
    if (!handler || held || waiting || resting) return;
    waiting = true;
    acceptor.async_wait(tcp::acceptor::wait_read,
                        [self = shared_from_this()](const Failure& failure) {
                          self->waiting = false;
                          if (!failure) self->Take();
                        });
  }

  void Take() {
    for (int i = 0; i < kAtOnce && handler && !held; ++i) {
      const int fd =
          ::accept4(acceptor.native_handle(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
      if (fd < 0) {
        if (errno == EAGAIN || errno == EWOULDBLOCK) break;
        if (HasNoRoom(errno)) return Rest(errno);
        continue;  // this one had ended already
      }
      exhausted = false;
      Failure failure;
      tcp::socket socket(acceptor.get_executor());
      socket.assign(protocol(), fd, failure);
      if (failure) {
        ::close(fd);
        return Rest(failure.value());
      }
      const auto called = handler;  // it may destroy the Acceptor
      called->on_connection(std::move(socket));
    }
    Wait();
  }

  void Rest(int why) {
    const auto called = handler;
    if (!std::exchange(exhausted, true) && called->on_exhausted)
      called->on_exhausted(std::generic_category().message(why));
    if (!handler) return;
    resting = true;
    rest.expires_after(kRest);
    rest.async_wait([self = shared_from_this()](const Failure& failure) {
      self->resting = false;
      if (!failure) self->Take();
    });
  }

  tcp protocol() const {
    Failure ignored;
    return acceptor.local_endpoint(ignored).protocol();
  }

  tcp::acceptor acceptor;
  ForkGuard guard;
  asio::steady_timer rest;
  std::shared_ptr<const Handler> handler;  // null: closed
  bool waiting = false;
  bool resting = false;
  bool held = false;
  bool exhausted = false;
};

Acceptor::Acceptor(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}

Acceptor::~Acceptor() { impl_->Close(); }

std::unique_ptr<Acceptor> Acceptor::Listen(asio::io_context& io, const tcp::endpoint& at,
                                           Handler handler, Failure& error) {
  auto impl = std::make_shared<Impl>(io, std::move(handler));
  std::unique_ptr<Acceptor> made(new Acceptor(impl));
  impl->Open(at, error);
  if (error) return nullptr;
  return made;
}

tcp::endpoint Acceptor::endpoint() const {
  Failure ignored;
  return impl_->acceptor.local_endpoint(ignored);
}

void Acceptor::Hold() { impl_->held = true; }

void Acceptor::Resume() {
  impl_->held = false;
  impl_->Wait();
}

}  // namespace lockstep::transport
