#include "coordinator/http/status_page.h"

#include <fmt/format.h>
#include <unistd.h>

#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <map>
#include <utility>
#include <vector>

#include "base/log.h"
#include "base/slowdown_spec.h"
#include "transport/acceptor.h"
#include "transport/places.h"

namespace lockstep::coordinator {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using tcp = asio::ip::tcp;

constexpr auto kRequestTimeout = std::chrono::seconds(10);
constexpr std::uint64_t kMaxBodyBytes = kMaxSlowdownBytes;
constexpr std::uint32_t kMaxHeaderBytes = 8192;

class Exchange;

// The state that connections need, also those that outlive the page.
struct Shared {
  Shared(HttpRequests answers, std::size_t connections)
      : requests(std::move(answers)), places({.most = connections}) {}
  HttpRequests requests;
  transport::Places places;
  std::map<transport::Places::Ticket, Exchange*> exchanges;
  bool closed = false;  // the page is gone, and with it whoever answers requests
};

// One request and its answer. Lives as long as a handler of it is on its way.
class Exchange : public std::enable_shared_from_this<Exchange> {
 public:
  Exchange(tcp::socket socket, std::shared_ptr<Shared> shared, transport::Places::Ticket ticket)
      : stream_(std::move(socket)), shared_(std::move(shared)), ticket_(ticket) {
    shared_->exchanges[ticket_] = this;
    parser_.body_limit(kMaxBodyBytes);
    parser_.header_limit(kMaxHeaderBytes);
  }
  ~Exchange() {
    shared_->places.GiveBack(ticket_);
    shared_->exchanges.erase(ticket_);
  }
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  void Begin() {
    stream_.expires_after(kRequestTimeout);
    stream_.async_read_some(
        scrap(), [self = shared_from_this()](beast::error_code error, std::size_t bytes) {
          if (error) return;
          self->shared_->places.Heard(self->ticket_);
          self->buffer_.commit(bytes);
          http::async_read(self->stream_, self->buffer_, self->parser_,
                           [self](beast::error_code failure, std::size_t) { self->Read(failure); });
        });
  }
  // Its handlers come to their end with an error.
  void Close() { stream_.close(); }
  // An answer may still go out.
  void CloseUnlessAnswered() {
    if (!answered_) Close();
  }

 private:
  asio::mutable_buffer scrap() { return buffer_.prepare(4096); }

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
    if (shared_->closed) return;
    const auto& message = parser_.get();
    const auto header = [&](const auto& name) { return std::string(message[name]); };
    HttpRequest request;
    request.method = std::string(message.method_string());
    request.target = std::string(message.target());
    request.body = message.body();
    request.host = header(http::field::host);
    request.nonce = header("Lockstep-Nonce");
    request.proof = header("Lockstep-Proof");
    if (message.find(http::field::origin) != message.end())
      request.origin = header(http::field::origin);
    answered_ = true;  // before the request ends the job and with it the page
    Send(shared_->requests.Answer(MonotonicNow(), request));
  }

  void Send(HttpAnswer answer) {
    answered_ = true;
    response_.version(11);
    response_.result(answer.status);
    response_.set(http::field::content_type, answer.type);
    response_.set(http::field::cache_control, "no-store");
    response_.set("X-Content-Type-Options", "nosniff");
    if (!answer.security_policy.empty())
      response_.set("Content-Security-Policy", answer.security_policy);
    response_.keep_alive(false);
    response_.body() = std::move(answer.body);
    response_.prepare_payload();
    http::async_write(stream_, response_,
                      [self = shared_from_this()](beast::error_code error, std::size_t) {
                        if (error) return;
                        beast::error_code ignored;
                        self->stream_.socket().shutdown(tcp::socket::shutdown_send, ignored);
                        self->buffer_.clear();
                        self->Drain();
                      });
  }

  // Drops the rest of the request: closing over unread bytes would discard the answer.
  void Drain() {
    stream_.async_read_some(scrap(),
                            [self = shared_from_this()](beast::error_code error, std::size_t) {
                              if (!error) self->Drain();
                            });
  }

  beast::tcp_stream stream_;
  std::shared_ptr<Shared> shared_;
  const transport::Places::Ticket ticket_;
  bool answered_ = false;
  beast::flat_buffer buffer_{16384};
  http::request_parser<http::string_body> parser_;
  http::response<http::string_body> response_;
};

// The names of this host; a browser on a strange page asks for another name.
std::vector<std::string> NamesOfThisHost() {
  char name[256] = {};
  if (::gethostname(name, sizeof name - 1) != 0 || name[0] == '\0') return {};
  const std::string full = name;
  return {full, full.substr(0, full.find('.'))};
}

class StatusPageImpl final : public StatusPage {
 public:
  ~StatusPageImpl() override {
    if (!shared_) return;
    shared_->closed = true;
    for (const auto& [ticket, exchange] : shared_->exchanges) exchange->CloseUnlessAnswered();
  }

  Status Open(asio::io_context& io, const HostPort& wanted, std::optional<HttpProof> proof,
              HttpRequests::Handlers handlers, std::size_t connections) {
    beast::error_code error;
    const auto host =
        asio::ip::make_address(wanted.host == "localhost" ? "127.0.0.1" : wanted.host, error);
    if (error) {
      return Error{ErrorCode::kInvalid,
                   fmt::format("--http {}: expected an IP address and a port", ToString(wanted))};
    }
    if (!host.is_loopback() && !proof) {
      return Error{
          ErrorCode::kInvalid,
          fmt::format("--http {}: beyond loopback a --secret-file is required", ToString(wanted))};
    }
    shared_ = std::make_shared<Shared>(
        HttpRequests(std::move(handlers), std::move(proof), NamesOfThisHost()), connections);
    // The connections share what they need with the page and know nothing of the page itself.
    transport::Acceptor::Handler handler;
    handler.on_connection = [shared = shared_](tcp::socket socket) {
      Serve(shared, std::move(socket));
    };
    handler.on_exhausted = [](const std::string& why) {
      spdlog::warn("no status page for now: {}", why);
    };
    acceptor_ = transport::Acceptor::Listen(io, {host, wanted.port}, std::move(handler), error);
    if (error)
      return Error{ErrorCode::kUnavailable,
                   fmt::format("--http {}: {}", ToString(wanted), error.message())};
    return {};
  }

  HostPort address() const override {
    const auto endpoint = acceptor_->endpoint();
    return {endpoint.address().to_string(), endpoint.port()};
  }

 private:
  static void Serve(const std::shared_ptr<Shared>& shared, tcp::socket socket) {
    std::string address = transport::AddressKey(socket);
    const auto taken = shared->places.Take(MonotonicNow(), std::move(address));
    if (taken.ended) {
      const auto found = shared->exchanges.find(*taken.ended);
      if (found != shared->exchanges.end()) found->second->Close();
    }
    std::make_shared<Exchange>(std::move(socket), shared, taken.ticket)->Begin();
  }

  std::shared_ptr<Shared> shared_;
  std::unique_ptr<transport::Acceptor> acceptor_;
};

}  // namespace

Result<std::unique_ptr<StatusPage>> StatusPage::Listen(asio::io_context& io,
                                                       const HostPort& address,
                                                       std::optional<HttpProof> proof,
                                                       HttpRequests::Handlers handlers,
                                                       std::size_t connections) {
  auto page = std::make_unique<StatusPageImpl>();
  if (Status opened = page->Open(io, address, std::move(proof), std::move(handlers), connections);
      !opened.ok()) {
    return opened.error();
  }
  return std::unique_ptr<StatusPage>(std::move(page));
}

}  // namespace lockstep::coordinator
