#include "coordinator/shell/lease_keeper.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <charconv>
#include <csignal>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <variant>

#include "base/ini.h"
#include "base/log.h"
#include "base/overloaded.h"

namespace lockstep::coordinator {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using tcp = asio::ip::tcp;
using Json = nlohmann::json;

constexpr std::uint64_t kMostAnswer = 64u << 10;
// etcd gives no lease of less than one and a half elections: 1.5 s as it is configured by default.
constexpr auto kShortestTtl = std::chrono::seconds(2);
constexpr std::int64_t kLongestTtl = 3600;  // seconds; that an answer may say

std::string Base64(std::string_view bytes) {
  constexpr char kDigits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  for (std::size_t at = 0; at < bytes.size(); at += 3) {
    std::uint32_t three = 0;
    for (std::size_t i = 0; i < 3; ++i) {
      const bool there = at + i < bytes.size();
      three = three << 8 | (there ? static_cast<unsigned char>(bytes[at + i]) : 0u);
    }
    for (std::size_t i = 0; i < 4; ++i) {
      const bool there = at + i <= bytes.size();  // so many digits, then padding
      text += there ? kDigits[three >> (18 - 6 * i) & 63] : '=';
    }
  }
  return text;
}

// The text may hold any bytes; this form is for people.
std::string FromBase64(std::string_view text) {
  std::string bytes;
  std::uint32_t bits = 0;
  int count = 0;
  for (const char c : text) {
    std::uint32_t digit = 0;
    if (c >= 'A' && c <= 'Z') {
      digit = static_cast<std::uint32_t>(c - 'A');
    } else if (c >= 'a' && c <= 'z') {
      digit = static_cast<std::uint32_t>(c - 'a') + 26;
    } else if (c >= '0' && c <= '9') {
      digit = static_cast<std::uint32_t>(c - '0') + 52;
    } else if (c == '+' || c == '/') {
      digit = c == '+' ? 62 : 63;
    } else {
      break;
    }
    bits = bits << 6 | digit;
    if (count++ % 4 != 0) bytes += static_cast<char>(bits >> (6 - 2 * ((count - 1) % 4)) & 0xFF);
  }
  return Printable(bytes.substr(0, 256));
}

// The gateway writes 64-bit numbers as text.
std::optional<std::int64_t> NumberIn(const Json& json, const char* key) {
  const auto found = json.find(key);
  if (found == json.end()) return std::nullopt;
  if (found->is_number_integer()) return found->get<std::int64_t>();
  if (!found->is_string()) return std::nullopt;
  const auto& text = found->get_ref<const std::string&>();
  std::int64_t number = 0;
  const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (failed != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

Lease::Event NotUnderstood(const std::string& answer) {
  return Lease::Failed{
      fmt::format("etcd would not answer like this: {}", Printable(answer.substr(0, 100)))};
}

// {"kvs": [{"value": ...}]}; without "kvs" there is no such key.
Lease::Event HolderIn(const Json& range, const std::string& answer) {
  const auto keys = range.find("kvs");
  if (keys == range.end()) return Lease::Absent{};
  if (!keys->is_array() || keys->empty() || !keys->front().is_object())
    return NotUnderstood(answer);
  const auto value = keys->front().find("value");
  return Lease::HeldBy{value != keys->front().end() && value->is_string()
                           ? FromBase64(value->get_ref<const std::string&>())
                           : std::string()};
}

Lease::Event OnLook(const std::string& answer) {
  const Json json = Json::parse(answer, nullptr, false);
  if (!json.is_object() || !json.contains("header")) return NotUnderstood(answer);
  return HolderIn(json, answer);
}

Lease::Event OnGrant(const std::string& answer) {
  const Json json = Json::parse(answer, nullptr, false);
  if (!json.is_object()) return NotUnderstood(answer);
  const auto id = NumberIn(json, "ID");
  const auto ttl = NumberIn(json, "TTL");
  if (!id || *id == 0 || !ttl || *ttl <= 0 || *ttl > kLongestTtl) return NotUnderstood(answer);
  return Lease::Granted{*id, std::chrono::seconds(*ttl)};
}

Lease::Event OnTake(const std::string& answer) {
  const Json json = Json::parse(answer, nullptr, false);
  if (!json.is_object() || !json.contains("header")) return NotUnderstood(answer);
  const auto succeeded = json.find("succeeded");
  if (succeeded != json.end() && succeeded->is_boolean() && succeeded->get<bool>()) {
    return Lease::Taken{};
  }
  return Lease::HeldBy{};
}

// A stream of answers, of which there is one.
Lease::Event OnKeep(const std::string& answer) {
  const Json json = Json::parse(answer.substr(0, answer.find('\n')), nullptr, false);
  if (!json.is_object()) return NotUnderstood(answer);
  const auto result = json.find("result");
  if (result == json.end() || !result->is_object() || !NumberIn(*result, "ID")) {
    return NotUnderstood(answer);
  }
  return NumberIn(*result, "TTL").value_or(0) > 0 ? Lease::Event(Lease::Kept{})
                                                  : Lease::Event(Lease::Gone{});
}

}  // namespace

// One request and its answer; lives as long as a handler of it is on its way.
class LeaseKeeper::Request : public std::enable_shared_from_this<Request> {
 public:
  // An error as text, or the body.
  using Done = std::function<void(const std::string& failed, const std::string& answer)>;

  Request(asio::io_context& io, const HostPort& to, const std::string& target,
          const std::string& body, Duration patience, Done done)
      : to_(to), resolver_(io), stream_(io), done_(std::move(done)) {
    stream_.expires_after(
        std::chrono::duration_cast<std::chrono::steady_clock::duration>(patience));
    request_.method(http::verb::post);
    request_.target(target);
    request_.version(11);
    request_.set(http::field::host, ToString(to));
    request_.set(http::field::content_type, "application/json");
    request_.keep_alive(false);
    request_.body() = body;
    request_.prepare_payload();
    parser_.body_limit(kMostAnswer);
  }

  void Begin() {
    boost::system::error_code no_address;
    const auto address = asio::ip::make_address(to_.host, no_address);
    if (!no_address) {
      stream_.async_connect(
          tcp::endpoint(address, to_.port),
          [self = this->shared_from_this()](beast::error_code error) { self->Write(error); });
      return;
    }
    resolver_.async_resolve(to_.host, std::to_string(to_.port),
                            [self = this->shared_from_this()](
                                beast::error_code error, const tcp::resolver::results_type& found) {
                              if (error) return self->End(error.message());
                              self->stream_.async_connect(
                                  found, [self](beast::error_code failed, const tcp::endpoint&) {
                                    self->Write(failed);
                                  });
                            });
  }
  void Cancel() {
    done_ = nullptr;
    resolver_.cancel();
    stream_.close();
  }

 private:
  void Write(beast::error_code error) {
    if (error) return End(error.message());
    http::async_write(stream_, request_,
                      [self = this->shared_from_this()](beast::error_code failed, std::size_t) {
                        self->Read(failed);
                      });
  }
  void Read(beast::error_code error) {
    if (error) return End(error.message());
    http::async_read(stream_, buffer_, parser_,
                     [self = this->shared_from_this()](beast::error_code failed, std::size_t) {
                       if (failed) return self->End(failed.message());
                       const auto& answer = self->parser_.get();
                       if (answer.result() == http::status::ok) return self->End({});
                       self->End(fmt::format("HTTP status {}", answer.result_int()));
                     });
  }
  void End(const std::string& failed) {
    stream_.close();
    if (const Done done = std::exchange(done_, nullptr)) done(failed, parser_.get().body());
  }

  const HostPort to_;
  tcp::resolver resolver_;
  beast::tcp_stream stream_;
  http::request<http::string_body> request_;
  beast::flat_buffer buffer_{16384};
  http::response_parser<http::string_body> parser_;
  Done done_;
};

LeaseKeeper::LeaseKeeper(asio::io_context& io, LeaseAddress address, std::string holder,
                         Lease lease, Handlers handlers)
    : io_(io),
      address_(std::move(address)),
      holder_(std::move(holder)),
      lease_(std::move(lease)),
      handlers_(std::move(handlers)),
      timer_(io) {
  lease_.ForgetRequest();  // of the keeper before
  asio::post(io_, [self = self_] {
    if (*self != nullptr) (*self)->Step(Lease::TimerFired{});
  });
}

LeaseKeeper::~LeaseKeeper() {
  *self_ = nullptr;
  if (asked_) asked_->Cancel();
}

void LeaseKeeper::End(std::function<void()> done) {
  on_ended_ = std::move(done);
  Step(Lease::Ended{});
  if (on_ended_) asio::post(io_, std::exchange(on_ended_, nullptr));  // it had none
}

void LeaseKeeper::Step(const Lease::Event& event) {
  std::vector<Lease::Action> actions;
  lease_.Step(MonotonicNow(), event, &actions);
  const auto self = self_;
  for (const Lease::Action& action : actions) {
    CarryOut(action);
    if (*self == nullptr) return;
  }
}

void LeaseKeeper::CarryOut(const Lease::Action& action) {
  const std::string key = Base64(address_.name);
  std::visit(
      Overloaded{
          [&](const Lease::Look&) {
            Ask("/v3/kv/range", Json{{"key", key}}.dump(), OnLook);
          },
          [&](const Lease::Grant& a) {
            const auto seconds = std::chrono::ceil<std::chrono::seconds>(a.ttl).count();
            Ask("/v3/lease/grant", Json{{"TTL", seconds}}.dump(), OnGrant);
          },
          [&](const Lease::Take& a) {
            const Json absent = {
                {"key", key}, {"target", "CREATE"}, {"result", "EQUAL"}, {"create_revision", "0"}};
            const Json put = {
                {"request_put",
                 {{"key", key}, {"value", Base64(holder_)}, {"lease", std::to_string(a.id)}}}};
            Ask("/v3/kv/txn",
                Json{{"compare", Json::array({absent})}, {"success", Json::array({put})}}.dump(),
                OnTake);
          },
          [&](const Lease::Keep& a) {
            Ask("/v3/lease/keepalive", Json{{"ID", std::to_string(a.id)}}.dump(), OnKeep);
          },
          [&](const Lease::Revoke& a) {
            std::make_shared<Request>(io_, address_.etcd, "/v3/lease/revoke",
                                      Json{{"ID", std::to_string(a.id)}}.dump(), lease_.patience(),
                                      [ended = std::exchange(on_ended_, nullptr)](
                                          const std::string&, const std::string&) {
                                        if (ended) ended();
                                      })
                ->Begin();
          },
          [&](const Lease::SetTimer& a) {
            timer_.expires_at(std::chrono::steady_clock::time_point(
                std::chrono::duration_cast<std::chrono::steady_clock::duration>(
                    a.at.time_since_epoch())));
            timer_.async_wait([self = self_](const boost::system::error_code& error) {
              if (!error && *self != nullptr) (*self)->Step(Lease::TimerFired{});
            });
          },
          [&](const Lease::Lead&) { handlers_.on_lead(); },
          [&](const Lease::StopLeading& a) { handlers_.on_stop(a.why); },
      },
      action);
}

void LeaseKeeper::Ask(const std::string& target, const std::string& body,
                      std::function<Lease::Event(const std::string&)> read) {
  asked_ = std::make_shared<Request>(
      io_, address_.etcd, target, body, lease_.patience(),
      [self = self_, read = std::move(read)](const std::string& failed, const std::string& answer) {
        if (*self == nullptr) return;
        LeaseKeeper& keeper = **self;
        keeper.asked_ = nullptr;
        const Lease::Event event =
            failed.empty() ? read(answer)
                           : Lease::Failed{fmt::format("etcd at {} does not answer: {}",
                                                       ToString(keeper.address_.etcd), failed)};
        if (const auto* trouble = std::get_if<Lease::Failed>(&event)) {
          keeper.OnFailed(trouble->why);
        }
        keeper.Step(event);
      });
  asked_->Begin();
}

void LeaseKeeper::OnFailed(const std::string& why) {
  if (troubles_.Allow(MonotonicNow())) spdlog::warn("the lease {}: {}", ToString(address_), why);
}

Result<Lease> AwaitLease(const LeaseAddress& address, const std::string& holder, Duration ttl) {
  asio::io_context io(1);
  std::optional<Error> failed;
  const auto end = [&](ErrorCode code, std::string why) {
    failed = Error{code, fmt::format("the lease {}: {}", ToString(address), why)};
    io.stop();
  };
  LeaseKeeper keeper(
      io, address, holder, Lease(ttl),
      {.on_lead = [&] { io.stop(); },
       .on_stop = [&](const std::string& why) { end(ErrorCode::kUnavailable, why); }});
  asio::signal_set signals(io, SIGINT, SIGTERM);
  signals.async_wait([&](const boost::system::error_code& error, int) {
    if (!error) end(ErrorCode::kClosed, "interrupted before it was taken");
  });
  asio::steady_timer limit(io);
  limit.expires_after(std::chrono::duration_cast<std::chrono::steady_clock::duration>(2 * ttl));
  limit.async_wait([&](const boost::system::error_code& error) {
    if (error) return;
    const Lease& lease = keeper.lease();
    end(ErrorCode::kUnavailable, lease.trouble().empty()
                                     ? fmt::format("the coordinator at {} holds it", lease.holder())
                                     : lease.trouble());
  });
  io.run();
  if (failed) return *failed;
  return keeper.lease();
}

LeaseHold::LeaseHold(const LeaseAddress& address, const std::string& holder, Lease lease)
    : keeper_(std::make_unique<LeaseKeeper>(
          io_, address, holder, std::move(lease),
          LeaseKeeper::Handlers{.on_lead = [] {}, .on_stop = [](const std::string&) {}})),
      thread_([this] { io_.run(); }) {}

LeaseHold::~LeaseHold() {
  io_.stop();
  if (thread_.joinable()) thread_.join();
}

Lease LeaseHold::Take() {
  io_.stop();
  thread_.join();
  return keeper_->lease();
}

Duration LeaseTtl(Duration liveness_timeout) {
  return std::max<Duration>(kShortestTtl,
                            std::chrono::ceil<std::chrono::seconds>(liveness_timeout / 2));
}

}  // namespace lockstep::coordinator
