#include "worker/runtime/control_link.h"

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <deque>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/log.h"
#include "transport/control/channel.h"

namespace lockstep::worker {
namespace {

namespace asio = boost::asio;
namespace control = transport::control;

// `sent` is held back while more than this waits to go out.
constexpr std::size_t kShortQueueBytes = 4u << 20;
// Messages that are sent together are copied into one frame of bytes up to here.
constexpr std::size_t kJoinedBytes = 16u << 10;

// The coordinator acts on these only if they are late, by far more than control::kCompany, and a
// round closes a little later. In quick rounds they go out with what the worker says of the next
// one, so the coordinator wakes once a round for each worker instead of three times. Sums that
// stand in for another owner's are late already.
bool CanWait(const msg::FromWorker& message) {
  if (const auto* published = std::get_if<msg::Published>(&message)) {
    return !published->stands_in_for;
  }
  return std::holds_alternative<msg::Applied>(message);
}

class ControlLinkImpl final : public ControlLink {
 public:
  explicit ControlLinkImpl(Callbacks callbacks) : callbacks_(std::move(callbacks)) {}

  ~ControlLinkImpl() override {
    const auto ended = std::make_shared<std::promise<void>>();
    auto over = ended->get_future();
    asio::post(io_, [this, ended] {
      ended_ = ended;
      client_.reset();
      if (!channel_ || closed_) return Finish();
      closing_ = true;
      channel_->Close();
      limit_.expires_after(std::chrono::seconds(1));
      limit_.async_wait([this](const boost::system::error_code& cancelled) {
        if (!cancelled) Finish();
      });
    });
    over.get();
  }

  Status Open(const HostPort& coordinator, const std::string& secret_file, Duration timeout,
              bool once) {
    control::ControlClient::Options options;
    options.coordinator = coordinator;
    options.connect_timeout = timeout;
    options.once = once;
    if (!secret_file.empty()) {
      auto secret = control::ReadSecretFile(secret_file);
      if (!secret) return secret.error();
      if (!secret->warning.empty()) spdlog::warn("{}", secret->warning);
      options.secret = secret->secret;
    }
    const auto opened = std::make_shared<std::promise<Status>>();
    auto outcome = opened->get_future();
    asio::post(io_, [this, options = std::move(options), opened]() mutable {
      client_ = std::make_unique<control::ControlClient>(
          io_, std::move(options),
          [this, opened](Result<std::unique_ptr<control::CoordinatorChannel>> channel) {
            opened->set_value(channel ? Begin(std::move(*channel)) : Status(channel.error()));
          });
    });
    return outcome.get();
  }

  void Send(msg::FromWorker message, std::function<void()> sent) override {
    {
      const std::lock_guard lock(mutex_);
      given_.push_back({std::move(message), std::move(sent)});
      if (given_.size() > 1) return;  // the network thread is about to look
    }
    asio::post(io_, [this] { SendGiven(); });
  }

  void SetTimeout(Duration timeout) override {
    asio::post(io_, [this, timeout] {
      if (channel_ && !closed_) channel_->SetTimeout(timeout);
    });
  }

  const std::string& local_address() const override { return local_address_; }
  std::shared_ptr<transport::NetworkThread> network() const override { return network_; }

 private:
  struct Given {
    msg::FromWorker message;
    std::function<void()> sent;
  };

  Status Begin(std::unique_ptr<control::CoordinatorChannel> channel) {
    channel_ = std::move(channel);
    local_address_ = channel_->local_host();
    channel_->Start({.on_message = callbacks_.on_message,
                     .on_closed = [this](const Error& error) { OnClosed(error); },
                     .on_drained = [this] { Release(); },
                     .run_in_hand = callbacks_.run_in_hand});
    return {};
  }

  // What was posted or cancelled before has run when the destructor hears of it.
  void Finish() {
    channel_.reset();
    limit_.cancel();
    if (ended_) asio::post(io_, [ended = std::exchange(ended_, nullptr)] { ended->set_value(); });
  }

  // What a worker says at once, as that it has computed its units and sealed its part, goes out at
  // once: the coordinator wakes once for it. What tells only that all is well waits for that, too.
  void SendGiven() {
    std::vector<Given> given;
    {
      const std::lock_guard lock(mutex_);
      given.swap(given_);
    }
    if (!channel_ || closed_) return;
    const bool hurried = std::ranges::any_of(
        given, [](const Given& one) { return one.sent != nullptr || !CanWait(one.message); });
    std::string joined;
    const auto flush = [&] {
      if (joined.empty()) return;
      const control::Frame frame{std::make_shared<const std::string>(std::move(joined))};
      hurried ? channel_->Send(frame) : channel_->SendSoon(frame);
      joined.clear();
    };
    for (Given& one : given) {
      const control::Frame frame = control::MakeFrame(one.message);
      if (joined.size() + frame.bytes->size() > kJoinedBytes) flush();
      if (frame.bytes->size() > kJoinedBytes) {
        channel_->Send(frame);
      } else {
        joined += *frame.bytes;
      }
      if (one.sent) waiting_.push_back(std::move(one.sent));
    }
    flush();
    if (!waiting_.empty() && channel_->queued_bytes() < kShortQueueBytes) Release();
  }

  void Release() {
    auto waiting = std::move(waiting_);
    waiting_.clear();
    for (auto& sent : waiting) sent();
  }
  void OnClosed(const Error& error) {
    closed_ = true;
    if (closing_) return Finish();
    callbacks_.on_closed(error);
  }

  const Callbacks callbacks_;
  const std::shared_ptr<transport::NetworkThread> network_ =
      std::make_shared<transport::NetworkThread>("network");
  asio::io_context& io_ = network_->io();
  asio::steady_timer limit_{io_};
  std::unique_ptr<control::ControlClient> client_;
  std::unique_ptr<control::CoordinatorChannel> channel_;
  std::mutex mutex_;
  std::vector<Given> given_;  // under the mutex: what Send was given and SendGiven has not seen
  std::deque<std::function<void()>> waiting_;
  bool closed_ = false;
  bool closing_ = false;
  std::string local_address_;
  std::shared_ptr<std::promise<void>> ended_;  // told at the end of the destructor
};

}  // namespace

Result<std::unique_ptr<ControlLink>> ControlLink::Connect(const HostPort& coordinator,
                                                          const std::string& secret_file,
                                                          Duration timeout, Callbacks callbacks,
                                                          bool once) {
  auto link = std::make_unique<ControlLinkImpl>(std::move(callbacks));
  if (Status opened = link->Open(coordinator, secret_file, timeout, once); !opened.ok())
    return opened.error();
  return std::unique_ptr<ControlLink>(std::move(link));
}

}  // namespace lockstep::worker
