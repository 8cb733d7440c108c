#include "coordinator/shell/herald.h"

#include <utility>

namespace lockstep::coordinator {
namespace {

namespace control = transport::control;

constexpr auto kBetweenTries = std::chrono::seconds(1);

}  // namespace

Herald::Herald(boost::asio::io_context& io, HostPort to, std::optional<control::Secret> secret,
               Duration timeout, msg::Hello hello)
    : io_(io),
      to_(std::move(to)),
      secret_(std::move(secret)),
      timeout_(timeout),
      hello_(std::move(hello)),
      pause_(io) {
  Try();
}

void Herald::Try() {
  control::ControlClient::Options options;
  options.coordinator = to_;
  options.secret = secret_;
  options.channel.timeout = timeout_;
  options.connect_timeout = timeout_;
  options.once = true;
  client_ = std::make_unique<control::ControlClient>(
      io_, std::move(options), [this](Result<std::unique_ptr<control::CoordinatorChannel>> made) {
        if (!made) return TryLater();
        channel_ = *std::move(made);
        channel_->Start({.on_message = [](const msg::ToWorker&) {},
                         // One that is stopped hears nothing. One that closes the connection has
                         // heard, or is no coordinator any more.
                         .on_closed =
                             [this](const Error& error) {
                               if (error.code == ErrorCode::kTimeout) TryLater();
                             },
                         .on_drained = nullptr});
        channel_->Send(msg::FromWorker(hello_));
      });
}

void Herald::TryLater() {
  pause_.expires_after(kBetweenTries);
  pause_.async_wait([this](const boost::system::error_code& error) {
    if (!error) Try();
  });
}

}  // namespace lockstep::coordinator
