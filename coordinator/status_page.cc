#include "coordinator/status_page.h"

#include <fmt/format.h>

#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <utility>

#include "base/slowdown_spec.h"

namespace lockstep::coordinator {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using tcp = asio::ip::tcp;

constexpr std::size_t kMaxConnections = 32;
constexpr auto kRequestTimeout = std::chrono::seconds(10);
constexpr std::uint64_t kMaxBodyBytes = kMaxSlowdownBytes;
constexpr std::uint32_t kMaxHeaderBytes = 8192;

struct Shared {
  HttpRequests requests;
  std::size_t connections = 0;
};

// One request and its answer.
class Exchange : public std::enable_shared_from_this<Exchange> {
 public:
  Exchange(tcp::socket socket, std::shared_ptr<Shared> shared)
      : stream_(std::move(socket)), shared_(std::move(shared)) {
    ++shared_->connections;
    parser_.body_limit(kMaxBodyBytes);
    parser_.header_limit(kMaxHeaderBytes);
  }
  ~Exchange() { --shared_->connections; }
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  void Begin() {
    stream_.expires_after(kRequestTimeout);
    http::async_read(
        stream_, buffer_, parser_,
        [self = shared_from_this()](beast::error_code error, std::size_t) { self->Read(error); });
  }

 private:
  void Read(beast::error_code error) {
    if (!error) return Answer();
    if (error == http::error::body_limit) return Send(HttpError(413, "the body is too long"));
    if (error == http::error::header_limit || error == http::error::buffer_overflow)
      return Send(HttpError(431, "the header is too long"));
    // Not: the other end went away, or had its time.
    if (error.category() == http::make_error_code(http::error::bad_method).category() &&
        error != http::error::end_of_stream && error != http::error::partial_message) {
      Send(HttpError(400, "this is no HTTP request"));
    }
  }

  void Answer() {
    const auto& message = parser_.get();
    const auto header = [&](const char* name) { return std::string(message[name]); };
    HttpRequest request;
    request.method = std::string(message.method_string());
    request.target = std::string(message.target());
    request.body = message.body();
    request.nonce = header("Lockstep-Nonce");
    request.proof = header("Lockstep-Proof");
    request.from_web_page = message.find(http::field::origin) != message.end();
    Send(shared_->requests.Answer(MonotonicNow(), request));
  }

  void Send(HttpAnswer answer) {
    response_.version(11);
    response_.result(answer.status);
    response_.set(http::field::content_type, "application/json");
    response_.set(http::field::cache_control, "no-store");
    response_.keep_alive(false);
    response_.body() = std::move(answer.body);
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
  http::request_parser<http::string_body> parser_;
  http::response<http::string_body> response_;
};

class StatusPageImpl final : public StatusPage {
 public:
  explicit StatusPageImpl(asio::io_context& io) : acceptor_(io) {}

  Status Open(const HostPort& wanted, const std::optional<HttpProof::Key>& key,
              HttpRequests::Handlers handlers) {
    beast::error_code error;
    const auto host =
        asio::ip::make_address(wanted.host == "localhost" ? "127.0.0.1" : wanted.host, error);
    if (error) {
      return Error{ErrorCode::kInvalid,
                   fmt::format("--http {}: expected an IP address and a port", ToString(wanted))};
    }
    const bool beyond = !host.is_loopback();
    if (beyond && !key) {
      return Error{
          ErrorCode::kInvalid,
          fmt::format("--http {}: beyond loopback a --secret-file is required", ToString(wanted))};
    }
    shared_ = std::make_shared<Shared>(Shared{
        HttpRequests(std::move(handlers), beyond ? std::optional<HttpProof>(*key) : std::nullopt)});
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
                                                       const std::optional<HttpProof::Key>& key,
                                                       HttpRequests::Handlers handlers) {
  auto page = std::make_unique<StatusPageImpl>(io);
  if (Status opened = page->Open(address, key, std::move(handlers)); !opened.ok())
    return opened.error();
  return std::unique_ptr<StatusPage>(std::move(page));
}

}  // namespace lockstep::coordinator
