#include <fmt/format.h>

#include "transport/control/channel_impl.h"

#include <functional>
#include <list>

#include "transport/acceptor.h"
#include "transport/control/resolve.h"
#include "transport/places.h"

namespace lockstep::transport::control {
namespace {

namespace asio = boost::asio;
using asio::redirect_error;
using asio::use_awaitable;
using asio::ip::tcp;

constexpr std::size_t kMaxHelloBytes = 65536;
constexpr unsigned char kTlsHandshake = 0x16;  // the first byte of TLS; a frame of ours begins with
                                               // 0
// How long a newcomer may keep its place when others want it, where no secret distinguishes them.
// That is on loopback, where a refused client does not try again. Honest workers send at once.
constexpr Duration kSilent = std::chrono::milliseconds(100);
constexpr Duration kUndisturbed = std::chrono::seconds(1);

// A connection that has not said Hello yet.
struct Pending {
  std::shared_ptr<Stream> stream;
  Places::Ticket place = 0;
  bool proven = false;
  bool admitted = false;
  std::optional<Error> ended;  // an end from outside: by time, or by others who want its place

  void End(ErrorCode code, std::string why) {
    if (admitted || ended) return;
    ended = Error{code, std::move(why)};
    stream->Close();
  }
};

Places::Options PlacesFor(const ControlServer::Options& options) {
  if (options.secret) return {.most = options.max_pending};
  return {.most = options.max_pending, .undisturbed_silent = kSilent, .undisturbed = kUndisturbed};
}

}  // namespace

struct ControlServer::Impl : std::enable_shared_from_this<ControlServer::Impl> {
  Impl(asio::io_context& io, Options given, Handler callbacks)
      : options(std::move(given)),
        handler(std::make_shared<const Handler>(std::move(callbacks))),
        context(io),
        room(io),
        places(PlacesFor(options)),
        proven_places({.most = options.max_pending}) {
    if (options.secret) tls = std::make_shared<TlsContext>(TlsRole::kServer, *options.secret);
  }

  Status Open();
  void Stop();
  void Reject(const std::string& remote, const Error& why) const;
  void OnConnection(tcp::socket socket);
  // Newcomers wait outside while all places are taken by connections that may keep theirs for now.
  void AwaitRoom();
  void TakePlace(const std::shared_ptr<Pending>& newcomer, Places& of, std::string address);
  void GiveBack(const Pending& pending);
  void LeaveStrangers(const std::shared_ptr<Pending>& newcomer);

  static asio::awaitable<void> Serve(std::shared_ptr<Impl> self, std::shared_ptr<Pending> newcomer);
  static asio::awaitable<Result<msg::Hello>> Admit(std::shared_ptr<Impl> self,
                                                   std::shared_ptr<Pending> newcomer,
                                                   FrameReader& reader);

  Options options;
  std::shared_ptr<const Handler> handler;
  std::shared_ptr<TlsContext> tls;
  asio::io_context& context;
  std::unique_ptr<Acceptor> acceptor;
  asio::steady_timer room;
  Places places;         // places of strangers
  Places proven_places;  // places of clients that know the secret: strangers cannot take them
  std::list<std::shared_ptr<Pending>> pending;
  bool stopped = false;
};

Status ControlServer::Impl::Open() {
  const std::string name = ToString(options.listen);
  boost::system::error_code failure;
  tcp::resolver resolver(context);
  const auto found =
      resolver.resolve(options.listen.host, std::to_string(options.listen.port),
                       tcp::resolver::passive | tcp::resolver::numeric_service, failure);
  if (failure || found.empty()) {
    return Error{ErrorCode::kInvalid, fmt::format("{}: no such host: {}", name, failure.message())};
  }
  const tcp::endpoint endpoint = found.begin()->endpoint();
  if (!IsLoopback(endpoint.address()) && !options.secret) return SecretRequired(options.listen);
  Acceptor::Handler accepted;
  accepted.on_connection = [self = weak_from_this()](tcp::socket socket) {
    if (const auto held = self.lock()) held->OnConnection(std::move(socket));
  };
  accepted.on_exhausted = [self = weak_from_this()](const std::string& why) {
    if (const auto held = self.lock())
      held->Reject("the listening socket", {ErrorCode::kUnavailable, why});
  };
  acceptor = Acceptor::Listen(context, endpoint, std::move(accepted), failure);
  if (failure) {
    return Error{ErrorCode::kUnavailable, fmt::format("{}: {}", name, failure.message())};
  }
  return {};
}

void ControlServer::Impl::Stop() {
  stopped = true;
  handler = nullptr;
  acceptor = nullptr;
  room.cancel();
  for (const auto& newcomer : pending) newcomer->End(ErrorCode::kClosed, "closed here");
}

void ControlServer::Impl::Reject(const std::string& remote, const Error& why) const {
  const auto held = handler;
  if (held && held->on_rejected) held->on_rejected(remote, why);
}

void ControlServer::Impl::TakePlace(const std::shared_ptr<Pending>& newcomer, Places& of,
                                    std::string address) {
  const auto taken = of.Take(MonotonicNow(), std::move(address));
  newcomer->place = taken.ticket;
  if (!taken.ended) return;
  for (const auto& other : pending) {
    const bool there = (other->proven ? &proven_places : &places) == &of;
    if (there && other->place == *taken.ended)
      other->End(ErrorCode::kRefused, "too many connections that say no Hello");
  }
}

void ControlServer::Impl::GiveBack(const Pending& newcomer) {
  (newcomer.proven ? proven_places : places).GiveBack(newcomer.place);
}

void ControlServer::Impl::LeaveStrangers(const std::shared_ptr<Pending>& newcomer) {
  GiveBack(*newcomer);
  newcomer->proven = true;
  TakePlace(newcomer, proven_places, std::string());
}

void ControlServer::Impl::OnConnection(tcp::socket socket) {
  auto newcomer = std::make_shared<Pending>();
  TakePlace(newcomer, places, AddressKey(socket));
  newcomer->stream = std::make_shared<Stream>(std::move(socket));
  pending.push_back(newcomer);
  asio::co_spawn(context, Serve(shared_from_this(), std::move(newcomer)), RethrowFromCoroutine);
  AwaitRoom();
}

void ControlServer::Impl::AwaitRoom() {
  if (!acceptor) return;
  const Time now = MonotonicNow();
  const Time free = places.FreeAt(now);
  if (free <= now) return acceptor->Resume();
  acceptor->Hold();
  room.expires_after(free - now);
  room.async_wait([self = shared_from_this()](const boost::system::error_code& failure) {
    if (!failure) self->AwaitRoom();
  });
}

asio::awaitable<void> ControlServer::Impl::Serve(std::shared_ptr<Impl> self,
                                                 std::shared_ptr<Pending> newcomer) {
  const Duration most = self->options.handshake_timeout;
  asio::steady_timer deadline(self->context, most);
  deadline.async_wait([newcomer, most](const boost::system::error_code& failure) {
    if (failure) return;
    newcomer->End(ErrorCode::kTimeout, fmt::format("said no Hello within {:g} s", Seconds(most)));
  });
  FrameReader reader(kMaxHelloBytes);
  Result<msg::Hello> hello = co_await Admit(self, newcomer, reader);
  if (newcomer->ended) hello = *newcomer->ended;
  newcomer->admitted = hello.ok();
  if (!hello) {
    self->Reject(newcomer->stream->remote(), hello.error());
    // It may still have to read the reason. Until then it keeps its place and its deadline.
    co_await newcomer->stream->Drain();
  }
  deadline.cancel();
  self->pending.remove(newcomer);
  self->GiveBack(*newcomer);
  self->AwaitRoom();
  if (!hello) {
    newcomer->stream->Close();
    co_return;
  }
  const auto held = self->handler;
  if (!held) co_return;
  auto impl = std::make_shared<WorkerChannel::Impl>(newcomer->stream, std::move(reader),
                                                    self->options.channel);
  held->on_worker(std::make_unique<WorkerChannel>(std::move(impl)), *std::move(hello));
}

asio::awaitable<Result<msg::Hello>> ControlServer::Impl::Admit(std::shared_ptr<Impl> self,
                                                               std::shared_ptr<Pending> newcomer,
                                                               FrameReader& reader) {
  const std::shared_ptr<Stream> stream = newcomer->stream;
  boost::system::error_code failure;
  const auto first = co_await stream->Peek(failure);
  if (!first) {
    if (!failure) failure = asio::error::eof;
    co_return WhyEnded(failure);
  }
  self->places.Heard(newcomer->place);
  const bool wants_tls = *first == kTlsHandshake;
  if (wants_tls != (self->tls != nullptr)) {
    const std::string why = wants_tls ? "the worker has a --secret-file, the coordinator has none"
                                      : "the coordinator has a --secret-file, the worker has none";
    const std::string refusal = Encode(msg::ToWorker(msg::Refuse{why}));
    co_await stream->Tell(refusal);
    co_return Error{ErrorCode::kRefused, why};
  }
  if (self->tls) {
    // It happens at its hello, not at the end of the handshake. For the worker the handshake ends
    // earlier, and a worker that is refused after that does not try again.
    std::function<void()> on_hello = [self, newcomer] { self->LeaveStrangers(newcomer); };
    Status secured = co_await stream->Secure(self->tls, TlsRole::kServer, std::move(on_hello));
    if (!secured) co_return secured.error();
    // The connection that ends here may replay a recorded hello: it stays silent.
    self->proven_places.Heard(newcomer->place);
  }
  std::vector<std::byte> buffer(4096);
  while (true) {
    const std::size_t got = co_await stream->ReadSome(asio::buffer(buffer), failure);
    if (failure) co_return WhyEnded(failure);
    reader.Append(std::span(buffer).first(got));
    const auto frame = reader.Next();
    if (!frame) co_return frame.error();
    if (!*frame) continue;
    Result<msg::FromWorker> message = DecodeFromWorker(**frame);
    if (!message) co_return message.error();
    if (auto* hello = std::get_if<msg::Hello>(&*message)) co_return std::move(*hello);
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
  const tcp::endpoint endpoint = impl_->acceptor->endpoint();
  return {endpoint.address().to_string(), endpoint.port()};
}

void ControlServer::SetTimeout(Duration timeout) { impl_->options.channel.timeout = timeout; }

}  // namespace lockstep::transport::control
