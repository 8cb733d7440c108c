#include "coordinator/shell/server.h"

#include <fmt/format.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <csignal>
#include <map>
#include <unordered_map>
#include <utility>

#include "base/log.h"
#include "base/log_limit.h"
#include "coordinator/http/status_page.h"
#include "coordinator/record/write_json.h"
#include "transport/control/channel.h"

namespace lockstep::coordinator {
namespace {

namespace asio = boost::asio;
namespace control = transport::control;

// After the job's end: how long what was sent may take to go out.
constexpr auto kFarewell = std::chrono::seconds(3);

std::chrono::steady_clock::time_point SteadyTime(Time time) {
  return std::chrono::steady_clock::time_point(
      std::chrono::duration_cast<std::chrono::steady_clock::duration>(time.time_since_epoch()));
}

class ServerImpl final : public Server {
 public:
  Status Start(const CoordinatorOptions& options) {
    control::ControlServer::Options server;
    server.listen = options.listen;
    server.channel.timeout = FromSeconds(options.job.liveness.timeout_s);
    std::optional<control::Secret> secret;
    if (!options.secret_file.empty()) {
      auto read = control::ReadSecretFile(options.secret_file);
      if (!read) return read.error();
      if (!read->warning.empty()) spdlog::warn("{}", read->warning);
      secret = read->secret;
      server.secret = secret;
    }
    control::ControlServer::Handler handler;
    handler.on_worker = [this](std::unique_ptr<control::WorkerChannel> channel, msg::Hello hello) {
      OnWorker(std::move(channel), std::move(hello));
    };
    handler.on_rejected = [this](const std::string& remote, const Error& error) {
      if (rejections_.Allow(MonotonicNow()))
        spdlog::warn("connection from {} came to nothing: {}", remote, error.message);
    };
    auto listening = control::ControlServer::Listen(io_, std::move(server), std::move(handler));
    if (!listening) return listening.error();
    listener_ = std::move(*listening);
    if (options.http) {
      HttpRequests::Handlers handlers;
      handlers.status = [this] { return StatusText(runner_->CurrentStatus()); };
      handlers.ask = [this](Event event) { return runner_->Ask(std::move(event)); };
      std::optional<HttpProof::Key> key;
      if (secret) key = secret->Derive("http");
      auto page = StatusPage::Listen(io_, *options.http, key, std::move(handlers));
      if (!page) return page.error();
      page_ = std::move(*page);
    }
    return {};
  }

  std::string address() const override { return ToString(listener_->address()); }
  std::optional<std::string> http_address() const override {
    return page_ ? std::optional(ToString(page_->address())) : std::nullopt;
  }

  std::unique_ptr<ActionRunner> Run(
      const std::function<std::unique_ptr<ActionRunner>(ActionRunner::Ports)>& make) override {
    ActionRunner::Ports ports;
    ports.send = [this](ConnectionId to, const std::shared_ptr<const msg::ToWorker>& message) {
      Send(to, message);
    };
    ports.close = [this](ConnectionId connection, const std::string& reason) {
      Close(connection, reason);
    };
    ports.set_timer = [this](Time at) { SetTimer(at); };
    ports.finished = [this] { Finish(); };
    ports.post = [this](std::function<void()> task) { asio::post(io_, std::move(task)); };
    runner_ = make(std::move(ports));
    WatchSignals();
    Tick();
    runner_->Handle(TimerFired{});  // the core's first look at the clock: it sets its timer
    io_.run();
    channels_.clear();
    return std::move(runner_);
  }

 private:
  struct Peer {
    std::unique_ptr<control::WorkerChannel> channel;
    std::optional<msg::Ping> asked;  // by the core, and not answered
    std::uint64_t ping = 0;          // of the channel, that was sent for it
  };

  void OnWorker(std::unique_ptr<control::WorkerChannel> made, msg::Hello hello) {
    const ConnectionId id(++last_id_);
    control::WorkerChannel* channel = made.get();
    channels_.emplace(id, Peer{std::move(made), std::nullopt, 0});
    const std::string remote = channel->remote();
    channel->Start({.on_message =
                        [this, id](msg::FromWorker message) {
                          Deliver(Received{id, std::move(message)});
                        },
                    .on_closed =
                        [this, id](const Error& error) {
                          const bool ours = closing_.erase(id) != 0;
                          channels_.erase(id);
                          if (!ours) Deliver(Disconnected{id, error.message});
                          if (finished_ && channels_.empty()) io_.stop();
                        },
                    .on_drained = nullptr,
                    .on_pong = [this, id](std::uint64_t ping) { OnPong(id, ping); }});
    Deliver(Connected{id, remote});
    Deliver(Received{id, std::move(hello)});
  }

  void TellLeftOut(Time now) {
    if (const std::uint64_t count = rejections_.TakeLeftOut(now); count > 0)
      spdlog::warn("{} more connections came to nothing", count);
  }

  void Deliver(Event event) {
    if (!finished_) runner_->Handle(std::move(event));
  }

  void Send(ConnectionId to, const std::shared_ptr<const msg::ToWorker>& message) {
    const auto found = channels_.find(to);
    if (found == channels_.end()) return;
    if (const auto* ping = std::get_if<msg::Ping>(message.get())) return Ask(found->second, *ping);
    // Encoded once for all who get the same message.
    if (message != last_message_) {
      last_frame_ = control::MakeFrame(*message);
      last_message_ = message;
    }
    found->second.channel->Send(last_frame_);
  }

  // The core asks in order to tell who is silent from who has nothing to say. So what was heard
  // before it asked is no answer: the worker itself is asked, besides the channel's own heartbeats.
  void Ask(Peer& peer, const msg::Ping& ping) {
    peer.asked = ping;
    peer.ping = peer.channel->Ping();
  }

  // Told with the clock of the fastest of the recent answers, as if that had come just now.
  void OnPong(ConnectionId id, std::uint64_t sequence) {
    const auto found = channels_.find(id);
    if (found == channels_.end()) return;
    Peer& peer = found->second;
    if (!peer.asked || sequence < peer.ping) return;
    msg::Pong pong{
        .sequence = peer.asked->sequence, .ping_sent_ns = peer.asked->sent_ns, .answered_ns = 0};
    peer.asked.reset();
    if (const auto clock = peer.channel->clock()) {
      const Duration now = MonotonicNow().time_since_epoch();
      pong.ping_sent_ns = (now - clock->rtt).count();
      pong.answered_ns = (now - clock->rtt / 2 + clock->offset).count();
    }
    Deliver(Received{id, pong});
  }

  void Close(ConnectionId connection, const std::string& reason) {
    const auto found = channels_.find(connection);
    if (found == channels_.end()) return;
    spdlog::debug("closing the connection of {}: {}", found->second.channel->remote(), reason);
    closing_.emplace(connection, reason);
    found->second.channel->Close();
  }

  // Nearly every message moves the core's next deadline, mostly to a later time. So a timer that
  // is set is left alone unless it would come too late, and looks again when it comes.
  void SetTimer(Time at) {
    due_ = at;
    if (at >= armed_) return;
    timer_.cancel();
    Arm();
  }

  void Arm() {
    armed_ = due_;
    if (due_ == kNever) return;
    timer_.expires_at(SteadyTime(due_));
    timer_.async_wait([this](const boost::system::error_code& error) {
      if (error) return;
      armed_ = kNever;
      const Time at = due_;
      if (MonotonicNow() < at) return Arm();
      due_ = kNever;
      Deliver(TimerFired{});
    });
  }

  void WatchSignals() {
    signals_.async_wait([this](const boost::system::error_code& error, int signal) {
      if (error) return;
      Deliver(StopRequested{signal == SIGINT ? "interrupted (SIGINT)" : "interrupted (SIGTERM)"});
      WatchSignals();
    });
  }

  void Tick() {
    progress_.expires_after(std::chrono::duration_cast<std::chrono::steady_clock::duration>(
        runner_->progress_interval()));
    progress_.async_wait([this](const boost::system::error_code& error) {
      if (error || finished_) return;
      runner_->ShowProgress();
      TellLeftOut(MonotonicNow());
      Tick();
    });
  }

  void Finish() {
    finished_ = true;
    timer_.cancel();
    progress_.cancel();
    signals_.cancel();
    page_.reset();
    listener_.reset();
    TellLeftOut(kNever);
    for (auto& [id, peer] : channels_) {
      closing_.emplace(id, "the job has ended");
      peer.channel->Close();
    }
    // Not from within a callback of a channel.
    farewell_.expires_after(channels_.empty() ? std::chrono::steady_clock::duration::zero()
                                              : kFarewell);
    farewell_.async_wait([this](const boost::system::error_code&) { io_.stop(); });
  }

  asio::io_context io_{1};
  asio::signal_set signals_{io_, SIGINT, SIGTERM};
  asio::steady_timer timer_{io_};
  asio::steady_timer progress_{io_};
  asio::steady_timer farewell_{io_};
  std::unique_ptr<control::ControlServer> listener_;
  std::unique_ptr<StatusPage> page_;
  std::unordered_map<ConnectionId, Peer> channels_;
  std::map<ConnectionId, std::string> closing_;
  std::unique_ptr<ActionRunner> runner_;
  std::shared_ptr<const msg::ToWorker> last_message_;
  control::Frame last_frame_;
  LogLimit rejections_{20, std::chrono::seconds(10)};
  std::uint64_t last_id_ = 0;
  Time due_ = kNever;    // the core's next deadline
  Time armed_ = kNever;  // when the timer comes; not after due_
  bool finished_ = false;
};

}  // namespace

Result<std::unique_ptr<Server>> Server::Open(const CoordinatorOptions& options) {
  auto server = std::make_unique<ServerImpl>();
  if (Status started = server->Start(options); !started.ok()) return started.error();
  return std::unique_ptr<Server>(std::move(server));
}

}  // namespace lockstep::coordinator
