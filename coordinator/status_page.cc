#include "coordinator/status_page.h"

#include <fmt/format.h>

#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <utility>

namespace lockstep::coordinator {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using tcp = asio::ip::tcp;

constexpr std::size_t kMaxConnections = 32;
constexpr auto kRequestTimeout = std::chrono::seconds(10);

struct Shared {
  std::function<std::string()> status;
  std::size_t connections = 0;
};

// One request and its answer.
class Exchange : public std::enable_shared_from_this<Exchange> {
 public:
  Exchange(tcp::socket socket, std::shared_ptr<Shared> shared)
      : stream_(std::move(socket)), shared_(std::move(shared)) {
    ++shared_->connections;
    parser_.body_limit(0);
    parser_.header_limit(8192);
  }
  ~Exchange() { --shared_->connections; }

  void Begin() {
    stream_.expires_after(kRequestTimeout);
    http::async_read(stream_, buffer_, parser_,
                     [self = shared_from_this()](beast::error_code error, std::size_t) {
                       if (!error) self->Answer();
                     });
  }

 private:
  void Answer() {
    const auto& request = parser_.get();
    response_.version(request.version());
    response_.set(http::field::content_type, "application/json");
    response_.set(http::field::cache_control, "no-store");
    response_.keep_alive(false);
    if (request.method() != http::verb::get) {
      response_.result(http::status::method_not_allowed);
      response_.body() = "{\"error\": \"GET only\"}\n";
    } else if (request.target() == "/status" || request.target() == "/") {
      response_.body() = shared_->status();
    } else {
      response_.result(http::status::not_found);
      response_.body() = "{\"error\": \"try /status\"}\n";
    }
    response_.prepare_payload();
    http::async_write(stream_, response_,
                      [self = shared_from_this()](beast::error_code, std::size_t) {
                        beast::error_code ignored;
                        self->stream_.socket().shutdown(tcp::socket::shutdown_send, ignored);
                      });
  }

  beast::tcp_stream stream_;
  std::shared_ptr<Shared> shared_;
  beast::flat_buffer buffer_{16384};
  http::request_parser<http::empty_body> parser_;
  http::response<http::string_body> response_;
};

class StatusPageImpl final : public StatusPage {
 public:
  StatusPageImpl(asio::io_context& io, std::function<std::string()> status)
      : acceptor_(io), shared_(std::make_shared<Shared>(Shared{std::move(status)})) {}

  Status Open(const HostPort& wanted) {
    beast::error_code error;
    const auto host =
        asio::ip::make_address(wanted.host == "localhost" ? "127.0.0.1" : wanted.host, error);
    if (error || !host.is_loopback()) {
      return Error{ErrorCode::kInvalid,
                   fmt::format("--http {}: the status page is for loopback addresses only",
                               ToString(wanted))};
    }
    const tcp::endpoint endpoint(host, wanted.port);
    acceptor_.open(endpoint.protocol(), error);
    if (!error) acceptor_.set_option(asio::socket_base::reuse_address(true), error);
    if (!error) acceptor_.bind(endpoint, error);
    if (!error) acceptor_.listen(asio::socket_base::max_listen_connections, error);
    if (error)
      return Error{ErrorCode::kUnavailable,
                   fmt::format("--http {}: {}", ToString(wanted), error.message())};
    Accept();
    return {};
  }

  HostPort address() const override {
    const auto endpoint = acceptor_.local_endpoint();
    return {endpoint.address().to_string(), endpoint.port()};
  }

 private:
  void Accept() {
    acceptor_.async_accept([this](beast::error_code error, tcp::socket socket) {
      if (error == asio::error::operation_aborted) return;
      if (!error && shared_->connections < kMaxConnections)
        std::make_shared<Exchange>(std::move(socket), shared_)->Begin();
      Accept();
    });
  }

  tcp::acceptor acceptor_;
  std::shared_ptr<Shared> shared_;
};

}  // namespace

Result<std::unique_ptr<StatusPage>> StatusPage::Listen(asio::io_context& io,
                                                       const HostPort& address,
                                                       std::function<std::string()> status) {
  auto page = std::make_unique<StatusPageImpl>(io, std::move(status));
  if (Status opened = page->Open(address); !opened.ok()) return opened.error();
  return std::unique_ptr<StatusPage>(std::move(page));
}

}  // namespace lockstep::coordinator
