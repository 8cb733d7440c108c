// The control plane's connections: control messages over TCP, within TLS 1.3 where there is a
// secret. The coordinator has a ControlServer and a WorkerChannel for each worker, a worker has a
// ControlClient and a CoordinatorChannel.
//
// Threads. Everything here belongs to the one thread that runs the io_context: every call is made
// on it (or while nobody runs it) and every callback comes on it. Others post to it. What is made
// with an io_context is destroyed before it.
//
// Callbacks never come from within a call, and any of them may destroy the object that it is about.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "base/host_port.h"
#include "base/messages.h"
#include "base/result.h"
#include "base/time.h"
#include "transport/control/secret.h"

namespace boost::asio {
class io_context;
}

namespace lockstep::transport::control {

struct ChannelOptions {
  Duration timeout = std::chrono::seconds(10);  // liveness.timeout, the same at both ends
  std::size_t max_message_bytes = 8u << 20;     // larger ones end the connection, either way
  std::size_t send_queue_bytes = 64u << 20;     // what the other end does not take
};

// From the ping with the shortest round trip among the recent ones.
struct ClockEstimate {
  Duration rtt;
  Duration offset;  // the other end's monotonic clock less ours; right to within rtt / 2
};

// A message as it goes over the wire, for sending it to many.
struct Frame {
  std::shared_ptr<const std::string> bytes;
};
Frame MakeFrame(const msg::ToWorker& message);
Frame MakeFrame(const msg::FromWorker& message);

// One connection. Pings and Pongs are the channel's own and not seen outside: the coordinator's end
// pings every quarter of the time-out, the worker's end answers.
template <class Out, class In>
class Channel {
 public:
  struct Handler {
    std::function<void(In)> on_message;
    // Once, last. kTimeout: "no heartbeat for 10 s"; kInvalid: the other end sent what is no
    // message; kClosed: it closed, its process ended, its machine said no, it did not take what was
    // sent, or Close was called here.
    std::function<void(const Error&)> on_closed;
    // May be empty. All that was queued has been handed to the operating system.
    std::function<void()> on_drained;
    // May be empty; the coordinator's end only. The other end has answered the ping of this number,
    // and with it all before.
    std::function<void(const msg::Pong&)> on_pong = nullptr;
    // May be empty; the worker's end only. What its pongs say of the compute thread.
    std::function<msg::RunInHand()> run_in_hand = nullptr;
  };

  // As Close, but no callback comes any more. What is queued goes out while the io_context runs.
  ~Channel();
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;

  // Begins to receive and to watch the other end. Once; nothing is read before.
  void Start(Handler handler);

  // Queues a message. Never fails here: what goes wrong comes as on_closed. On a connection that
  // has ended it does nothing.
  void Send(const Out& message);
  void Send(const Frame& frame);  // of an Out
  std::size_t queued_bytes() const;

  // Sends what is queued, for at most the time-out, then ends the connection. Nothing is received
  // any more; on_closed follows.
  void Close();

  // ChannelOptions::timeout anew, for an end that learns it from the other one; waiting begins now.
  void SetTimeout(Duration timeout);

  // The coordinator's end only: asks for a sign of life at once, whatever was heard before. Returns
  // the number that on_pong will name.
  std::uint64_t Ping();
  // The coordinator's end only; nothing before the first answer.
  std::optional<ClockEstimate> clock() const;

  const std::string& remote() const;      // "10.0.0.2:41234", for messages
  const std::string& local_host() const;  // our address on this connection, without port

  class Impl;
  explicit Channel(std::shared_ptr<Impl> impl);  // made by server and client

 private:
  std::shared_ptr<Impl> impl_;
};

using WorkerChannel = Channel<msg::ToWorker, msg::FromWorker>;
using CoordinatorChannel = Channel<msg::FromWorker, msg::ToWorker>;
extern template class Channel<msg::ToWorker, msg::FromWorker>;
extern template class Channel<msg::FromWorker, msg::ToWorker>;

// Accepts workers. A connection is handed out once it has proven the secret and said Hello; until
// then it has `handshake_timeout`, small messages only, and a place among `max_pending`. When all
// are taken one gives way (transport/places.h); who knows the secret has a place among as many
// others from its TLS hello on, which strangers cannot take. Without a secret newcomers wait
// meanwhile, up to a second.
class ControlServer {
 public:
  struct Options {
    HostPort listen{"127.0.0.1", 0};  // port 0: one that is free
    // Required as soon as `listen` is no loopback address. With a secret all connections need it.
    std::optional<Secret> secret;
    ChannelOptions channel;
    Duration handshake_timeout = std::chrono::seconds(10);
    std::size_t max_pending = 256;
  };
  struct Handler {
    // Call Start on the channel (now or later), or destroy it.
    std::function<void(std::unique_ptr<WorkerChannel>, msg::Hello)> on_worker;
    // For the log: a connection that came to nothing, by address, and why ("wrong secret: ...").
    std::function<void(const std::string& remote, const Error&)> on_rejected;
  };

  // kInvalid: a host that is none, or no secret where one is required. kUnavailable:
  // "127.0.0.1:7070: Address already in use".
  static Result<std::unique_ptr<ControlServer>> Listen(boost::asio::io_context& io, Options options,
                                                       Handler handler);
  // Stops listening. Channels that were handed out live on.
  ~ControlServer();
  ControlServer(const ControlServer&) = delete;
  ControlServer& operator=(const ControlServer&) = delete;

  // With the port that the kernel chose.
  HostPort address() const;
  // ChannelOptions::timeout anew, of channels that are handed out from now on.
  void SetTimeout(Duration timeout);

 private:
  struct Impl;
  explicit ControlServer(std::shared_ptr<Impl> impl);
  std::shared_ptr<Impl> impl_;
};

// Connects to the coordinator. Tries again, at growing intervals up to a second, what may pass
// (nobody listens there yet, a name that is not known yet), until the time is up.
class ControlClient {
 public:
  struct Options {
    HostPort coordinator;
    std::optional<Secret> secret;  // required unless the coordinator's address is loopback
    ChannelOptions channel;
    Duration connect_timeout = std::chrono::seconds(60);  // in all
  };
  // kRefused: wrong secret, or the coordinator has none (not tried again). kInvalid: no secret
  // where one is required. kTimeout: "127.0.0.1:7070: not reached within 60 s: Connection refused".
  using Done = std::function<void(Result<std::unique_ptr<CoordinatorChannel>>)>;

  // `done` is called once, unless the client is destroyed before.
  ControlClient(boost::asio::io_context& io, Options options, Done done);
  ~ControlClient();
  ControlClient(const ControlClient&) = delete;
  ControlClient& operator=(const ControlClient&) = delete;

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace lockstep::transport::control
