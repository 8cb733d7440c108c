// The worker's end of the control plane: the channel to the coordinator, and the thread that serves
// it. That thread may serve the connections to peers as well (transport::Options::network).
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "base/host_port.h"
#include "base/messages.h"
#include "base/result.h"
#include "base/time.h"
#include "transport/network_thread.h"

namespace lockstep::worker {

class ControlLink {
 public:
  struct Callbacks {
    std::function<void(msg::ToWorker)> on_message;  // network thread
    std::function<void(Error)> on_closed;           // network thread, once, last
    // Network thread: asked for with each ping. May be empty.
    std::function<msg::RunInHand()> run_in_hand = nullptr;
  };

  // Blocks until connected (and, with a secret, proven) or until `timeout`, trying again while
  // nobody listens there, unless it is to try `once`.
  static Result<std::unique_ptr<ControlLink>> Connect(const HostPort& coordinator,
                                                      const std::string& secret_file,
                                                      Duration timeout, Callbacks callbacks,
                                                      bool once = false);
  virtual ~ControlLink() =
      default;  // lets what was sent go out, within a second; no callback runs after it

  // Any thread. `sent` runs on the network thread when the message was taken by the channel and the
  // channel's queue is short again: the pace of bulk.
  virtual void Send(msg::FromWorker message, std::function<void()> sent = nullptr) = 0;
  // How long nothing may be heard before the channel counts as closed.
  virtual void SetTimeout(Duration timeout) = 0;
  // This host's address on the way to the coordinator.
  virtual const std::string& local_address() const = 0;
  // The link's thread; whoever keeps it ends after the link's callbacks do.
  virtual std::shared_ptr<transport::NetworkThread> network() const = 0;
};

}  // namespace lockstep::worker
