#include <fmt/format.h>

#include "transport/control/channel_impl.h"

#include <algorithm>
#include <list>

#include "transport/control/resolve.h"

namespace lockstep::transport::control {
namespace {

namespace asio = boost::asio;
using asio::redirect_error;
using asio::use_awaitable;
using asio::ip::tcp;

constexpr std::size_t kMaxHelloBytes = 65536;
constexpr unsigned char kTlsHandshake = 0x16;  // first byte; a frame of ours begins with 0
// How long a newcomer may keep its place when others want it.
constexpr Duration kUndisturbed = std::chrono::seconds(1);
// After an accept that failed, out of file descriptors for one.
constexpr Duration kPause = std::chrono::seconds(1);

// A connection that has not said Hello yet.
struct Pending {
  std::shared_ptr<Stream> stream;
  Time since;
  bool admitted = false;
  std::optional<Error> ended;  // from outside: by time, or by others who want its place

  void End(ErrorCode code, std::string why) {
    if (admitted || ended) return;
    ended = Error{code, std::move(why)};
    stream->Close();
  }
};

}  // namespace

struct ControlServer::Impl : std::enable_shared_from_this<ControlServer::Impl> {
  Impl(asio::io_context& io, Options given, Handler callbacks)
      : options(std::move(given)),
        handler(std::make_shared<const Handler>(std::move(callbacks))),
        acceptor(io),
        room(io) {
    if (options.secret) tls = std::make_shared<TlsContext>(TlsRole::kServer, *options.secret);
  }

  Status Open();
  void Stop();
  void Reject(const std::string& remote, const Error& why) const;
  // Ends the longest-waiting one that has had its time; false: all are too fresh.
  bool MakeRoom();

  static asio::awaitable<void> Accept(std::shared_ptr<Impl> self);
  static asio::awaitable<void> Serve(std::shared_ptr<Impl> self, std::shared_ptr<Pending> newcomer);
  static asio::awaitable<Result<Hello>> Admit(std::shared_ptr<Impl> self,
                                              std::shared_ptr<Stream> stream, FrameReader& reader);

  const Options options;
  std::shared_ptr<const Handler> handler;
  std::shared_ptr<TlsContext> tls;
  tcp::acceptor acceptor;
  asio::steady_timer room;                      // cancelled when a place becomes free
  std::list<std::shared_ptr<Pending>> pending;  // the oldest first
  bool stopped = false;
};

Status ControlServer::Impl::Open() {
  const std::string name = ToString(options.listen);
  boost::system::error_code failure;
  tcp::resolver resolver(acceptor.get_executor());
  const auto found =
      resolver.resolve(options.listen.host, std::to_string(options.listen.port),
                       tcp::resolver::passive | tcp::resolver::numeric_service, failure);
  if (failure || found.empty()) {
    return Error{ErrorCode::kInvalid, fmt::format("{}: no such host: {}", name, failure.message())};
  }
  const tcp::endpoint endpoint = found.begin()->endpoint();
  if (!IsLoopback(endpoint.address()) && !options.secret) return SecretRequired(options.listen);
  acceptor.open(endpoint.protocol(), failure);
  if (!failure) acceptor.set_option(tcp::acceptor::reuse_address(true), failure);
  if (!failure) acceptor.bind(endpoint, failure);
  if (!failure) acceptor.listen(tcp::acceptor::max_listen_connections, failure);
  if (failure) {
    return Error{ErrorCode::kUnavailable, fmt::format("{}: {}", name, failure.message())};
  }
  asio::co_spawn(acceptor.get_executor(), Accept(shared_from_this()), RethrowFromCoroutine);
  return {};
}

void ControlServer::Impl::Stop() {
  stopped = true;
  handler = nullptr;
  boost::system::error_code ignored;
  acceptor.close(ignored);
  room.cancel();
  for (const auto& newcomer : pending) newcomer->End(ErrorCode::kClosed, "closed here");
}

void ControlServer::Impl::Reject(const std::string& remote, const Error& why) const {
  const auto held = handler;
  if (held && held->on_rejected) held->on_rejected(remote, why);
}

bool ControlServer::Impl::MakeRoom() {
  if (pending.size() < options.max_pending) return true;
  const auto oldest = pending.front();
  if (MonotonicNow() - oldest->since < kUndisturbed) return false;
  pending.pop_front();
  oldest->End(ErrorCode::kRefused, "too many connections that say no Hello");
  return true;
}

asio::awaitable<void> ControlServer::Impl::Accept(std::shared_ptr<Impl> self) {
  boost::system::error_code failure;
  while (!self->stopped) {
    if (!self->MakeRoom()) {
      self->room.expires_after(self->pending.front()->since + kUndisturbed - MonotonicNow());
      co_await self->room.async_wait(redirect_error(use_awaitable, failure));
      continue;
    }
    tcp::socket socket =
        co_await self->acceptor.async_accept(redirect_error(use_awaitable, failure));
    if (self->stopped) break;
    if (failure) {
      self->Reject("the listening socket", WhyEnded(failure));
      if (self->stopped) break;
      self->room.expires_after(kPause);
      co_await self->room.async_wait(redirect_error(use_awaitable, failure));
      continue;
    }
    auto newcomer = std::make_shared<Pending>();
    newcomer->stream = std::make_shared<Stream>(std::move(socket));
    newcomer->since = MonotonicNow();
    self->pending.push_back(newcomer);
    asio::co_spawn(self->acceptor.get_executor(), Serve(self, std::move(newcomer)),
                   RethrowFromCoroutine);
  }
}

asio::awaitable<void> ControlServer::Impl::Serve(std::shared_ptr<Impl> self,
                                                 std::shared_ptr<Pending> newcomer) {
  const Duration most = self->options.handshake_timeout;
  asio::steady_timer deadline(self->acceptor.get_executor(), most);
  deadline.async_wait([newcomer, most](const boost::system::error_code& failure) {
    if (failure) return;
    newcomer->End(ErrorCode::kTimeout, fmt::format("said no Hello within {:g} s", Seconds(most)));
  });
  FrameReader reader(kMaxHelloBytes);
  Result<Hello> hello = co_await Admit(self, newcomer->stream, reader);
  deadline.cancel();
  self->pending.remove(newcomer);
  self->room.cancel();
  if (newcomer->ended) hello = *newcomer->ended;
  newcomer->admitted = hello.ok();
  if (!hello) {
    newcomer->stream->Close();
    self->Reject(newcomer->stream->remote(), hello.error());
    co_return;
  }
  const auto held = self->handler;
  if (!held) co_return;
  auto impl = std::make_shared<WorkerChannel::Impl>(newcomer->stream, std::move(reader),
                                                    self->options.channel);
  held->on_worker(std::make_unique<WorkerChannel>(std::move(impl)), *std::move(hello));
}

asio::awaitable<Result<Hello>> ControlServer::Impl::Admit(std::shared_ptr<Impl> self,
                                                          std::shared_ptr<Stream> stream,
                                                          FrameReader& reader) {
  boost::system::error_code failure;
  const auto first = co_await stream->Peek(failure);
  if (!first) {
    if (!failure) failure = asio::error::eof;
    co_return WhyEnded(failure);
  }
  const bool wants_tls = *first == kTlsHandshake;
  if (wants_tls != (self->tls != nullptr)) {
    const std::string why = wants_tls ? "the worker has a --secret-file, the coordinator has none"
                                      : "the coordinator has a --secret-file, the worker has none";
    const std::string refusal = Encode(ToWorker(Refuse{why}));
    co_await stream->Dismiss(refusal);
    co_return Error{ErrorCode::kRefused, why};
  }
  if (self->tls) {
    Status secured = co_await stream->Secure(self->tls, TlsRole::kServer);
    if (!secured) co_return secured.error();
  }
  std::vector<std::byte> buffer(4096);
  while (true) {
    const std::size_t got = co_await stream->ReadSome(asio::buffer(buffer), failure);
    if (failure) co_return WhyEnded(failure);
    reader.Append(std::span(buffer).first(got));
    const auto frame = reader.Next();
    if (!frame) co_return frame.error();
    if (!*frame) continue;
    Result<FromWorker> message = DecodeFromWorker(**frame);
    if (!message) co_return message.error();
    if (auto* hello = std::get_if<Hello>(&*message)) co_return std::move(*hello);
    co_return Error{ErrorCode::kInvalid, "the first message is not Hello"};
  }
}

ControlServer::ControlServer(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}

ControlServer::~ControlServer() { impl_->Stop(); }

Result<std::unique_ptr<ControlServer>> ControlServer::Listen(asio::io_context& io, Options options,
                                                             Handler handler) {
  LOCKSTEP_CHECK(handler.on_worker != nullptr, "a server needs on_worker");
  LOCKSTEP_CHECK(options.max_pending > 0, "a server needs room for newcomers");
  auto impl = std::make_shared<Impl>(io, std::move(options), std::move(handler));
  if (Status opened = impl->Open(); !opened) return opened.error();
  return std::unique_ptr<ControlServer>(new ControlServer(std::move(impl)));
}

HostPort ControlServer::address() const {
  boost::system::error_code ignored;
  const tcp::endpoint endpoint = impl_->acceptor.local_endpoint(ignored);
  return {endpoint.address().to_string(), endpoint.port()};
}

}  // namespace lockstep::transport::control
