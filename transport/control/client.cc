#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include "transport/control/channel_impl.h"

#include <algorithm>
#include <vector>

#include "transport/acceptor.h"
#include "transport/control/resolve.h"

namespace lockstep::transport::control {
namespace {

namespace asio = boost::asio;
using asio::redirect_error;
using asio::use_awaitable;
using asio::ip::tcp;

constexpr Duration kFirstPause = std::chrono::milliseconds(50);
constexpr Duration kLongestPause = std::chrono::seconds(1);
// The limit for one address: a packet filter may swallow the request.
constexpr Duration kAttempt = std::chrono::seconds(10);

}  // namespace

struct ControlClient::Impl : std::enable_shared_from_this<ControlClient::Impl> {
  Impl(asio::io_context& io, Options given, Done callback)
      : options(std::move(given)),
        done(std::move(callback)),
        resolver(io),
        total(io, options.connect_timeout),
        attempt(io),
        pause(io) {
    if (options.secret) tls = std::make_shared<TlsContext>(TlsRole::kClient, *options.secret);
  }

  void Begin();
  // Ends the attempt that is under way.
  void EndAttempt();
  void Stop();
  void Finish(Result<std::unique_ptr<CoordinatorChannel>> result);

  static asio::awaitable<void> Run(std::shared_ptr<Impl> self);
  static asio::awaitable<Result<std::shared_ptr<Stream>>> TryAll(std::shared_ptr<Impl> self);
  static asio::awaitable<Result<std::shared_ptr<Stream>>> Try(std::shared_ptr<Impl> self,
                                                              tcp::endpoint endpoint);

  const Options options;
  Done done;
  std::shared_ptr<TlsContext> tls;
  tcp::resolver resolver;
  asio::steady_timer total;
  asio::steady_timer attempt;
  asio::steady_timer pause;
  std::shared_ptr<tcp::socket> socket;  // the socket that is being connected
  std::shared_ptr<Stream> stream;       // the stream that is being secured
  bool time_is_up = false;
  bool stopped = false;
};

void ControlClient::Impl::Begin() {
  total.async_wait([self = shared_from_this()](const boost::system::error_code& failure) {
    if (failure || self->stopped) return;
    self->time_is_up = true;
    self->resolver.cancel();
    self->pause.cancel();
    self->EndAttempt();
  });
  asio::co_spawn(total.get_executor(), Run(shared_from_this()), RethrowFromCoroutine);
}

void ControlClient::Impl::EndAttempt() {
  boost::system::error_code ignored;
  if (socket) socket->close(ignored);
  if (stream) stream->Close();
}

void ControlClient::Impl::Stop() {
  stopped = true;
  done = nullptr;
  total.cancel();
  attempt.cancel();
  resolver.cancel();
  pause.cancel();
  EndAttempt();
}

void ControlClient::Impl::Finish(Result<std::unique_ptr<CoordinatorChannel>> result) {
  total.cancel();
  stopped = true;
  const Done callback = std::exchange(done, nullptr);
  if (callback) callback(std::move(result));
}

asio::awaitable<void> ControlClient::Impl::Run(std::shared_ptr<Impl> self) {
  const std::string name = ToString(self->options.coordinator);
  Duration pause = kFirstPause;
  while (!self->stopped) {
    auto connected = co_await TryAll(self);
    if (self->stopped) break;
    if (connected.ok()) {
      auto impl = std::make_shared<CoordinatorChannel::Impl>(*std::move(connected), FrameReader(0),
                                                             self->options.channel);
      self->Finish(std::make_unique<CoordinatorChannel>(std::move(impl)));
      break;
    }
    const Error& why = connected.error();
    if (why.code == ErrorCode::kRefused || why.code == ErrorCode::kInvalid) {
      self->Finish(Error{why.code, why.message.starts_with(name)
                                       ? why.message
                                       : fmt::format("{}: {}", name, why.message)});
      break;
    }
    if (self->options.once && !self->time_is_up) {
      self->Finish(Error{ErrorCode::kUnavailable, fmt::format("{}: {}", name, why.message)});
      break;
    }
    if (!self->time_is_up) {
      boost::system::error_code ignored;
      self->pause.expires_after(pause);
      co_await self->pause.async_wait(redirect_error(use_awaitable, ignored));
      // Somebody may wait for a worker that has nothing to report itself.
      if (pause < kLongestPause && 2 * pause >= kLongestPause && !self->stopped &&
          !self->time_is_up) {
        spdlog::info("{} is not reached yet: {}; it is tried for {:g} s", name, why.message,
                     Seconds(self->options.connect_timeout));
      }
      pause = std::min(2 * pause, kLongestPause);
    }
    if (self->time_is_up) {
      self->Finish(Error{ErrorCode::kTimeout,
                         fmt::format("{}: not reached within {:g} s: {}", name,
                                     Seconds(self->options.connect_timeout), why.message)});
      break;
    }
  }
}

asio::awaitable<Result<std::shared_ptr<Stream>>> ControlClient::Impl::TryAll(
    std::shared_ptr<Impl> self) {
  const HostPort& coordinator = self->options.coordinator;
  std::vector<tcp::endpoint> found;
  boost::system::error_code failure;
  // Asio starts a thread for a name, and ends the process where no thread can be started.
  const auto address = asio::ip::make_address(coordinator.host, failure);
  if (!failure) {
    found.emplace_back(address, coordinator.port);
  } else {
    const auto named = co_await self->resolver.async_resolve(
        coordinator.host, std::to_string(coordinator.port), tcp::resolver::numeric_service,
        redirect_error(use_awaitable, failure));
    if (failure) {
      co_return Error{ErrorCode::kUnavailable,
                      self->time_is_up ? "the name is not answered for" : failure.message()};
    }
    for (const auto& entry : named) found.push_back(entry.endpoint());
  }
  for (const tcp::endpoint& endpoint : found) {
    if (!IsLoopback(endpoint.address()) && !self->options.secret) {
      co_return SecretRequired(coordinator);
    }
  }
  Error last{ErrorCode::kUnavailable, "the name has no address"};
  for (const tcp::endpoint& endpoint : found) {
    if (self->stopped || self->time_is_up) break;
    auto connected = co_await Try(self, endpoint);
    if (connected.ok() || connected.error().code == ErrorCode::kRefused) co_return connected;
    last = connected.error();
  }
  co_return last;
}

asio::awaitable<Result<std::shared_ptr<Stream>>> ControlClient::Impl::Try(
    std::shared_ptr<Impl> self, tcp::endpoint endpoint) {
  // The timer's handler may already be on its way when the attempt ends.
  enum class Phase { kUnderWay, kTooLong, kOver };
  const auto phase = std::make_shared<Phase>(Phase::kUnderWay);
  self->attempt.expires_after(kAttempt);
  self->attempt.async_wait([self, phase](const boost::system::error_code& ended) {
    if (ended || *phase == Phase::kOver) return;
    *phase = Phase::kTooLong;
    self->EndAttempt();
  });
  boost::system::error_code failure;
  self->socket = std::make_shared<tcp::socket>(self->total.get_executor());
  OpenSocket(*self->socket, endpoint.protocol(), failure);
  if (!failure)
    co_await self->socket->async_connect(endpoint, redirect_error(use_awaitable, failure));
  Status secured;
  if (!failure) {
    self->stream = std::make_shared<Stream>(std::move(*self->socket));
    if (self->tls) secured = co_await self->stream->Secure(self->tls, TlsRole::kClient);
  }
  self->socket = nullptr;
  const auto stream = std::exchange(self->stream, nullptr);
  const bool too_long = *phase == Phase::kTooLong || self->time_is_up;
  *phase = Phase::kOver;
  self->attempt.cancel();
  // When both completions are on their way, the timer's handler may have closed the secured stream.
  if (!failure && secured && !too_long) co_return stream;
  if (stream) stream->Close();
  if (too_long) co_return Error{ErrorCode::kUnavailable, "no answer"};
  if (failure) co_return Error{ErrorCode::kUnavailable, failure.message()};
  co_return secured.error();
}

ControlClient::ControlClient(asio::io_context& io, Options options, Done done)
    : impl_(std::make_shared<Impl>(io, std::move(options), std::move(done))) {
  LOCKSTEP_CHECK(impl_->done != nullptr, "a client needs a callback");
  impl_->Begin();
}

ControlClient::~ControlClient() { impl_->Stop(); }

}  // namespace lockstep::transport::control
