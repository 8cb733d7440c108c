#include "coordinator/shell/server.h"

#include <fmt/format.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <csignal>
#include <deque>
#include <map>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/log.h"
#include "base/log_limit.h"
#include "base/stop_signal.h"
#include "coordinator/job/context.h"
#include "coordinator/record/write_json.h"
#include "coordinator/shell/herald.h"
#include "transport/control/channel.h"

namespace lockstep::coordinator {
namespace {

namespace asio = boost::asio;
namespace control = transport::control;

// After the job's end: how long what was sent may take to go out.
constexpr auto kFarewell = std::chrono::seconds(3);

// Pings of the core to one worker that wait for their answer.
constexpr std::size_t kQuestions = 16;

std::chrono::steady_clock::time_point SteadyTime(Time time) {
  return std::chrono::steady_clock::time_point(
      std::chrono::duration_cast<std::chrono::steady_clock::duration>(time.time_since_epoch()));
}

class ServerImpl final : public Server {
 public:
  ServerImpl(std::string job_id, const OpenPlaces& places)
      : job_id_(std::move(job_id)), places_(places) {}

  Status Start(const CoordinatorOptions& options) {
    control::ControlServer::Options server;
    server.listen = options.listen;
    server.channel.timeout = FromSeconds(options.job.liveness.timeout_s);
    server.max_pending = places_.newcomers;
    std::optional<control::Secret> secret;
    if (!options.secret_file.empty()) {
      auto read = control::ReadSecretFile(options.secret_file);
      if (!read) return read.error();
      secret_warning_ = read->warning;
      secret = read->secret;
      server.secret = secret;
    }
    control::ControlServer::Handler handler;
    handler.on_worker = [this](std::unique_ptr<control::WorkerChannel> channel, msg::Hello hello) {
      OnWorker(std::move(channel), std::move(hello));
    };
    handler.on_rejected = [this](const std::string& remote, const Error& error) {
      // Until there is a job to show the progress of, nobody else tells.
      const Time now = MonotonicNow();
      TellLeftOut(now);
      if (rejections_.Allow(now))
        spdlog::warn("connection from {} came to nothing: {}", remote, error.message);
    };
    auto listening = control::ControlServer::Listen(io_, std::move(server), std::move(handler));
    if (!listening) return listening.error();
    listener_ = std::move(*listening);
    secret_ = secret;
    workers_ = options.workers;
    // Until the job's settings are known there is nothing to show.
    return options.config_from_workers && !options.resume ? Status() : OpenPage(options);
  }

  Result<std::string> AwaitSettings(Duration limit) override {
    std::optional<Error> failed;
    const auto fail = [&](const boost::system::error_code& error, Error with) {
      if (error) return;
      failed = std::move(with);
      io_.stop();
    };
    signals_.async_wait([&](const boost::system::error_code& error, int) {
      fail(error, {ErrorCode::kClosed, "interrupted before a worker came"});
    });
    farewell_.expires_after(std::chrono::duration_cast<std::chrono::steady_clock::duration>(limit));
    farewell_.async_wait([&](const boost::system::error_code& error) {
      fail(error,
           {ErrorCode::kTimeout,
            fmt::format("no worker joined within {:g} s to configure the job", Seconds(limit))});
    });
    awaits_settings_ = true;
    io_.run();
    awaits_settings_ = false;
    TellLeftOut(kNever);
    signals_.cancel();
    farewell_.cancel();
    io_.restart();
    io_.poll();  // what was cancelled above speaks of this function's own
    io_.restart();
    // Both may have come in one turn; who stops the job means it.
    if (failed && (failed->code == ErrorCode::kClosed || !founding_)) return *failed;
    if (!founding_) return Error{ErrorCode::kClosed, "interrupted"};
    return *founding_;
  }

  Status Adopt(const CoordinatorOptions& options) override {
    const Duration timeout = FromSeconds(options.job.liveness.timeout_s);
    listener_->SetTimeout(timeout);
    for (auto& [id, peer] : channels_) peer.channel->SetTimeout(timeout);
    return OpenPage(options);
  }

  void Refuse(const std::string& reason) override {
    for (const auto& [id, peer] : channels_) SendAway(id, reason);
    listener_.reset();
    finished_ = true;
    farewell_.expires_after(kFarewell);
    farewell_.async_wait([this](const boost::system::error_code&) { io_.stop(); });
    if (!channels_.empty()) io_.run();
    channels_.clear();
  }

  Status OpenPage(const CoordinatorOptions& options) {
    if (options.http) {
      HttpRequests::Handlers handlers;
      handlers.status = [this] { return StatusText(runner_->CurrentStatus()); };
      handlers.metrics = [this] { return runner_->MetricsText(); };
      handlers.rounds = [this](std::int64_t after) { return runner_->RecentRoundsText(after); };
      handlers.ask = [this](Event event) { return runner_->Ask(std::move(event)); };
      std::optional<HttpProof> proof;
      if (secret_) proof.emplace(secret_->Derive("http"), job_id_);
      auto page = StatusPage::Listen(io_, *options.http, std::move(proof), std::move(handlers),
                                     places_.requests);
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
      Lead lead,
      const std::function<std::unique_ptr<ActionRunner>(ActionRunner::Ports)>& make) override {
    run_id_ = lead.run_id;
    term_ = lead.term;
    const Duration timeout = lead.job.timeout;
    most_for_standbys_ = timeout / 4;
    feed_ = std::make_unique<StandbyFeed>(
        io_, std::move(lead.job),
        StandbyFeed::Handlers{
            .on_standbys =
                [this](std::vector<std::string> addresses) { OnStandbys(std::move(addresses)); },
            .on_released = [this] { Release(); },
            .on_takeover = [this](Term term,
                                  const std::string& address) { OnOtherLeads(term, address); }});
    if (lead.taken_over_from) {
      msg::Hello hello;
      hello.version = Version();
      hello.standby = msg::StandbyHello{address(), false, term_, run_id_};
      herald_ =
          std::make_unique<Herald>(io_, *lead.taken_over_from, secret_, timeout, std::move(hello));
    }
    if (lead.lease && !TakeLease(lead)) return make({});
    ActionRunner::Ports ports;
    ports.send = [this](ConnectionId to, const std::shared_ptr<const msg::ToWorker>& message) {
      OnceNoted([this, to, message] { Send(to, message); });
    };
    ports.close = [this](ConnectionId connection, const std::string& reason) {
      OnceNoted([this, connection, reason] { Close(connection, reason); });
    };
    ports.set_timer = [this](Time at) { SetTimer(at); };
    ports.follow = [this](msg::Followed::Part part, const std::string& text) {
      feed_->Tell(part, text);
    };
    ports.abandon = [this](const std::string& reason) { DoAbandon(reason); };
    ports.finished = [this] { OnceNoted([this] { Finish(); }); };
    ports.post = [this](std::function<void()> task) { asio::post(io_, std::move(task)); };
    runner_ = make(std::move(ports));
    if (!secret_warning_.empty()) spdlog::warn("{}", secret_warning_);
    WatchSignals();
    Tick();
    runner_->Handle(TimerFired{});  // the core's first look at the clock: it sets its timer
    for (Event& event : std::exchange(early_, {})) Deliver(std::move(event));
    io_.run();
    channels_.clear();
    herald_.reset();
    keeper_.reset();
    feed_.reset();
    return std::move(runner_);
  }

  const std::string& abandoned() const override { return abandoned_; }

 private:
  struct Peer {
    // A ping of the core, and the channel's own that was sent for it.
    struct Question {
      msg::Ping asked;
      std::uint64_t sent = 0;
    };

    std::unique_ptr<control::WorkerChannel> channel;
    std::deque<Question> questions;  // not answered, the oldest first; at most kQuestions
  };

  // False: it is lost already.
  bool TakeLease(const Lead& lead) {
    const auto stop = [this, name = ToString(lead.lease_address)](const std::string& why) {
      DoAbandon(
          fmt::format("the lease {} is lost: {}; this coordinator ends, and the job goes on "
                      "with the next one",
                      name, why));
    };
    Lease lease = lead.lease->Take();
    if (!lease.leading()) stop("it expired while the job was taken up");
    if (finished_) return false;
    keeper_ =
        std::make_unique<LeaseKeeper>(io_, lead.lease_address, lead.lease_holder, std::move(lease),
                                      LeaseKeeper::Handlers{.on_lead = [] {}, .on_stop = stop});
    return true;
  }

  // Before anything is decided or said. This process may have been stopped for longer than the
  // lease lives, and its timers have not come yet.
  bool MayLead() {
    if (!keeper_ || keeper_->leads()) return !finished_;
    keeper_->Look();
    LOCKSTEP_CHECK(finished_, "a lapsed lease does not end its holder");
    return false;
  }

  // Another coordinator: one that follows, or one that has taken over.
  void OnStandby(std::unique_ptr<control::WorkerChannel> channel, const msg::Hello& hello) {
    const msg::StandbyHello& standby = *hello.standby;
    std::string refusal = ProtocolMismatch(hello);
    const bool mismatch = !refusal.empty();
    if (!mismatch && (!feed_ || finished_)) refusal = "there is no job to follow here yet";
    if (refusal.empty() && standby.leads > Term()) {
      if (standby.run_id == run_id_ && standby.leads >= term_) {
        return OnOtherLeads(standby.leads, standby.address);
      }
      refusal = fmt::format("this coordinator leads another job, or in a higher term ({})", term_);
    }
    if (refusal.empty()) return feed_->Accept(std::move(channel), standby);
    channel->Send(msg::ToWorker(msg::Refuse{refusal, !mismatch}));
  }

  // A coordinator may die right after a standby is complete, so the workers are to know it before.
  // What answers a ping has read what was sent before the ping.
  void OnStandbys(std::vector<std::string> addresses) {
    const bool any = !addresses.empty();
    const std::string address = any ? addresses.front() : std::string();
    Deliver(StandbysChanged{std::move(addresses)});
    unaware_.clear();
    unaware_patience_.cancel();
    if (!any) return;
    OnceNoted([this, address] {
      for (auto& [id, peer] : channels_) unaware_[id] = peer.channel->Ping();
      if (unaware_.empty()) return feed_->Known();
      unaware_patience_.expires_after(
          std::chrono::duration_cast<std::chrono::steady_clock::duration>(most_for_standbys_));
      unaware_patience_.async_wait([this, address](const boost::system::error_code& error) {
        if (error || unaware_.empty()) return;
        spdlog::warn(
            "{} workers have not answered within {:g} s: should the coordinator die before they "
            "do, they will not know of the standby at {}",
            unaware_.size(), Seconds(most_for_standbys_), address);
        unaware_.clear();
        feed_->Known();
      });
    });
  }

  void OnAware(ConnectionId id) {
    if (unaware_.erase(id) == 0 || !unaware_.empty()) return;
    unaware_patience_.cancel();
    feed_->Known();
  }

  void OnOtherLeads(Term term, const std::string& address) {
    DoAbandon(
        fmt::format("the coordinator at {} leads the job in term {}, and this one in "
                    "term {}: this coordinator ends",
                    address, term, term_));
  }

  // As if this process were killed: nothing more is decided or said.
  void DoAbandon(const std::string& reason) {
    if (finished_) return;
    abandoned_ = reason;
    finished_ = true;
    held_.clear();
    io_.stop();
  }

  // Nobody hears of an entry of the journal before the standby has it, nor of anything after it.
  void OnceNoted(std::function<void()> act) {
    if (held_.empty() && !feed_->holds()) return act();
    held_.push_back(std::move(act));
  }
  void Release() {
    if (!MayLead()) return;
    for (auto& act : std::exchange(held_, {})) act();
  }

  void OnWorker(std::unique_ptr<control::WorkerChannel> made, msg::Hello hello) {
    if (hello.standby) return OnStandby(std::move(made), hello);
    const ConnectionId id(++last_id_);
    control::WorkerChannel* channel = made.get();
    channels_.emplace(id, Peer{std::move(made), {}});
    const std::string remote = channel->remote();
    channel->Start({.on_message =
                        [this, id](msg::FromWorker message) {
                          if (awaits_settings_) return SpeaksTooEarly(id);
                          Deliver(Received{id, std::move(message)});
                        },
                    .on_closed =
                        [this, id](const Error& error) {
                          const bool ours = closing_.erase(id) != 0;
                          channels_.erase(id);
                          silent_.erase(id);
                          OnAware(id);
                          if (awaits_settings_) return ForgetEarly(id);
                          if (!ours) Deliver(Disconnected{id, error.message});
                          if (finished_ && channels_.empty() && !releasing_) io_.stop();
                        },
                    .on_drained = nullptr,
                    .on_pong = [this, id](const msg::Pong& pong) { OnPong(id, pong); }});
    if (awaits_settings_ && !founding_ && !Found(id, hello)) return;
    Deliver(Connected{id, remote});
    Deliver(Received{id, std::move(hello)});
  }

  // The first who says what the job is founds it. A worker that cannot be in the job does not, and
  // a worker without settings waits. When all workers of the job have none, the settings are empty.
  // False: it was sent away.
  bool Found(ConnectionId id, const msg::Hello& hello) {
    if (std::string other = ProtocolMismatch(hello); !other.empty()) {
      SendAway(id, other);
      return false;
    }
    if (hello.settings.empty()) {
      silent_.insert(id);
      if (silent_.size() < workers_) return true;
    }
    founding_ = hello.settings;
    io_.stop();
    return true;
  }

  // Before there is a job nobody has anything to say but Hello, so what is kept of each is bounded.
  void SpeaksTooEarly(ConnectionId id) {
    spdlog::warn("{} speaks before it was let in", channels_.at(id).channel->remote());
    closing_.emplace(id, "it speaks before it was let in");
    channels_.at(id).channel->Close();
  }

  void ForgetEarly(ConnectionId id) {
    std::erase_if(early_, [id](const Event& event) {
      const auto* connected = std::get_if<Connected>(&event);
      const auto* received = std::get_if<Received>(&event);
      return (connected != nullptr && connected->connection == id) ||
             (received != nullptr && received->connection == id);
    });
  }

  void SendAway(ConnectionId id, const std::string& reason) {
    closing_.emplace(id, reason);
    channels_.at(id).channel->Send(control::MakeFrame(msg::ToWorker(msg::Refuse{reason, false})));
    channels_.at(id).channel->Close();
  }

  void TellLeftOut(Time now) {
    if (const std::uint64_t count = rejections_.TakeLeftOut(now); count > 0)
      spdlog::warn("{} more connections came to nothing", count);
  }

  void Deliver(Event event) {
    if (finished_ || !MayLead()) return;
    if (runner_ == nullptr) {
      early_.push_back(std::move(event));
    } else {
      runner_->Handle(std::move(event));
    }
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
  // A path that is slower than the core's patience still answers the first of two questions.
  static void Ask(Peer& peer, const msg::Ping& ping) {
    if (peer.questions.size() == kQuestions) peer.questions.pop_back();
    peer.questions.push_back({ping, peer.channel->Ping()});
  }

  // Told with the clock of the fastest of the recent answers, as if that had come just now.
  void OnPong(ConnectionId id, const msg::Pong& heard) {
    const auto found = channels_.find(id);
    if (found == channels_.end()) return;
    const auto unaware = unaware_.find(id);
    if (unaware != unaware_.end() && unaware->second <= heard.sequence) OnAware(id);
    Peer& peer = found->second;
    std::optional<msg::Ping> answered;
    while (!peer.questions.empty() && peer.questions.front().sent <= heard.sequence) {
      answered = peer.questions.front().asked;
      peer.questions.pop_front();
    }
    if (!answered) return;
    msg::Pong pong{.sequence = answered->sequence,
                   .ping_sent_ns = answered->sent_ns,
                   .answered_ns = 0,
                   .resident_bytes = heard.resident_bytes,
                   .run = heard.run};
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
      if (!stop_asked_ || second_counts_) {
        Deliver(StopRequested{signal == SIGINT ? "interrupted (SIGINT)" : "interrupted (SIGTERM)"});
      }
      if (!std::exchange(stop_asked_, true)) AwaitSecondStop();
      WatchSignals();
    });
  }
  // A timer of this loop tells the signals apart, not the clock: if the loop was busy, both signals
  // are there together.
  void AwaitSecondStop() {
    one_stop_.expires_after(
        std::chrono::duration_cast<std::chrono::steady_clock::duration>(kOneStopSignal));
    one_stop_.async_wait([this](const boost::system::error_code& error) {
      if (!error) second_counts_ = true;
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
    unaware_patience_.cancel();
    signals_.cancel();
    one_stop_.cancel();
    page_.reset();
    listener_.reset();
    herald_.reset();
    if (keeper_) {
      releasing_ = true;
      keeper_->End([this] {
        releasing_ = false;
        if (channels_.empty()) io_.stop();
      });
    }
    feed_->Close();
    TellLeftOut(kNever);
    for (auto& [id, peer] : channels_) {
      closing_.emplace(id, "the job has ended");
      peer.channel->Close();
    }
    // Not from within a callback of a channel.
    const bool waits = releasing_ || !channels_.empty();
    farewell_.expires_after(waits ? kFarewell : std::chrono::steady_clock::duration::zero());
    farewell_.async_wait([this](const boost::system::error_code&) { io_.stop(); });
  }

  const std::string job_id_;
  const OpenPlaces places_;
  asio::io_context io_{1};
  asio::signal_set signals_{io_, SIGINT, SIGTERM};
  bool stop_asked_ = false;
  bool second_counts_ = false;  // one_stop_ is over
  asio::steady_timer one_stop_{io_};
  asio::steady_timer timer_{io_};
  asio::steady_timer progress_{io_};
  asio::steady_timer farewell_{io_};
  std::unique_ptr<control::ControlServer> listener_;
  std::unique_ptr<StatusPage> page_;
  std::unique_ptr<StandbyFeed> feed_;  // in Run
  // Workers that have yet to answer a ping, its number, since the standby was told to them.
  std::unordered_map<ConnectionId, std::uint64_t> unaware_;
  asio::steady_timer unaware_patience_{io_};
  Duration most_for_standbys_ = {};  // in Run
  std::unique_ptr<Herald> herald_;
  std::unique_ptr<LeaseKeeper> keeper_;  // null: no lease decides
  bool releasing_ = false;               // it says so at the end
  std::string run_id_;
  Term term_;
  std::deque<std::function<void()>> held_;  // until the standby has the journal's last entry
  std::string abandoned_;
  std::unordered_map<ConnectionId, Peer> channels_;
  std::map<ConnectionId, std::string> closing_;
  std::unique_ptr<ActionRunner> runner_;
  std::optional<control::Secret> secret_;
  std::string secret_warning_;  // about its file
  // The Hellos before there is a runner, fewer than workers_ while settings are awaited.
  std::vector<Event> early_;
  bool awaits_settings_ = false;
  std::optional<std::string> founding_;  // the settings that the job is made of
  std::set<ConnectionId> silent_;        // connected workers that have said nothing of the job
  std::size_t workers_ = 0;
  std::shared_ptr<const msg::ToWorker> last_message_;
  control::Frame last_frame_;
  LogLimit rejections_{20, std::chrono::seconds(10)};
  std::uint64_t last_id_ = 0;
  Time due_ = kNever;    // the core's next deadline
  Time armed_ = kNever;  // when the timer comes; not after due_
  bool finished_ = false;
};

}  // namespace

Result<std::unique_ptr<Server>> Server::Open(const CoordinatorOptions& options, std::string job_id,
                                             const OpenPlaces& places) {
  auto server = std::make_unique<ServerImpl>(std::move(job_id), places);
  if (Status started = server->Start(options); !started.ok()) return started.error();
  return std::unique_ptr<Server>(std::move(server));
}

}  // namespace lockstep::coordinator
