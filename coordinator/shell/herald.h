// Tells the coordinator from which this one has taken over that it leads no more. The other one may
// be stopped, or cut off: it is tried until it has heard, as long as this one lives.
//
// Control thread only.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <memory>
#include <optional>

#include "base/host_port.h"
#include "base/messages.h"
#include "base/time.h"
#include "transport/control/channel.h"

namespace lockstep::coordinator {

class Herald {
 public:
  // `hello` says it.
  Herald(boost::asio::io_context& io, HostPort to, std::optional<transport::control::Secret> secret,
         Duration timeout, msg::Hello hello);

 private:
  void Try();
  void TryLater();

  boost::asio::io_context& io_;
  const HostPort to_;
  const std::optional<transport::control::Secret> secret_;
  const Duration timeout_;
  const msg::Hello hello_;
  boost::asio::steady_timer pause_;
  std::unique_ptr<transport::control::ControlClient> client_;
  std::unique_ptr<transport::control::CoordinatorChannel> channel_;
};

}  // namespace lockstep::coordinator
