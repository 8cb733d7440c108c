// The control plane's connections: control messages over TCP, within TLS 1.3 where there is a
// secret. The coordinator has a ControlServer and a WorkerChannel for each worker, a worker has a
// ControlClient and a CoordinatorChannel.
//
// Threads. Each object belongs to the one thread that runs the io_context: every call is made on it
// (or while nobody runs it) and every callback comes on it. Other threads post to it. Objects that
// are made with an io_context are destroyed before it.
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
  std::size_t max_message_bytes = 8u << 20;     // larger ones end the connection, both ways
  std::size_t send_queue_bytes = 64u << 20;     // bytes that the other end has not taken
};

// An estimate from the ping with the shortest round trip among the recent ones.
struct ClockEstimate {
  Duration rtt;
  Duration offset;  // the other end's monotonic clock less ours; right to within rtt / 2
};

// How long a message of SendSoon waits for another one.
inline constexpr Duration kCompany = std::chrono::milliseconds(1);

// An encoded message, for sending it to many.
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
    // Called once, as the last callback. kTimeout: "no heartbeat for 10 s"; kInvalid: the other end
    // sent bytes that are no message; kClosed: any other end. Such ends are: it closed, its process
    // ended, its machine refused, it did not take our messages, or Close was called here.
    std::function<void(const Error&)> on_closed;
    // May be empty. All queued messages have been handed to the operating system.
    std::function<void()> on_drained;
    // May be empty; only for the coordinator's end. The other end has answered the ping of this
    // number, and with it all earlier ones.
    std::function<void(const msg::Pong&)> on_pong = nullptr;
    // May be empty; only for the worker's end. Its pongs report this about the compute thread.
    std::function<msg::RunInHand()> run_in_hand = nullptr;
  };

  // Like Close, but no callback comes any more. Queued messages go out while the io_context runs.
  ~Channel();
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;

  // Begins to receive and to watch the other end. Call it once; nothing is read before.
  void Start(Handler handler);

  // Queues a message. It never fails here: errors come as on_closed. On a connection that has ended
  // it does nothing.
  void Send(const Out& message);
  void Send(const Frame& frame);  // of an Out
  // Like Send, for what nobody waits for: it goes out with the next message, in one write, or by
  // itself after kCompany. Nothing that is sent later overtakes it, a Pong included.
  void SendSoon(const Frame& frame);
  // Bytes that the operating system has not taken.
  std::size_t queued_bytes() const;

  // Sends the queued messages, for at most the time-out, then ends the connection. Nothing is
  // received any more; on_closed follows.
  void Close();

  // Sets ChannelOptions::timeout again, for an end that learns it from the other one; waiting
  // begins now.
  void SetTimeout(Duration timeout);

  // For the coordinator's end only: asks for a sign of life at once, whatever was heard before.
  // Returns the number that on_pong will name.
  std::uint64_t Ping();
  // For the coordinator's end only; nullopt before the first answer.
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

// Accepts workers. A connection is handed out once it has proven the secret and said Hello. Until
// then it has `handshake_timeout`, small messages only, and a place among `max_pending`. When all
// places are taken, one connection gives way (transport/places.h). A client that knows the secret
// has a place among as many others from its TLS hello on, which strangers cannot take. Without a
// secret newcomers wait meanwhile, up to a second.
class ControlServer {
 public:
  struct Options {
    HostPort listen{"127.0.0.1", 0};  // port 0: the kernel chooses a free one
    // It is required as soon as `listen` is no loopback address. With a secret all connections need
    // it.
    std::optional<Secret> secret;
    ChannelOptions channel;
    Duration handshake_timeout = std::chrono::seconds(10);
    std::size_t max_pending = 256;
  };
  struct Handler {
    // Call Start on the channel (now or later), or destroy it.
    std::function<void(std::unique_ptr<WorkerChannel>, msg::Hello)> on_worker;
    // Called for the log when a connection fails before its Hello, with its address and the reason
    // ("wrong secret: ...").
    std::function<void(const std::string& remote, const Error&)> on_rejected;
  };

  // kInvalid: `listen` is no host, or no secret where one is required. kUnavailable:
  // "127.0.0.1:7070: Address already in use".
  static Result<std::unique_ptr<ControlServer>> Listen(boost::asio::io_context& io, Options options,
                                                       Handler handler);
  // Stops listening. Channels that were handed out live on.
  ~ControlServer();
  ControlServer(const ControlServer&) = delete;
  ControlServer& operator=(const ControlServer&) = delete;

  // The address with the port that the kernel chose.
  HostPort address() const;
  // Sets ChannelOptions::timeout again, for channels that are handed out from now on.
  void SetTimeout(Duration timeout);

 private:
  struct Impl;
  explicit ControlServer(std::shared_ptr<Impl> impl);
  std::shared_ptr<Impl> impl_;
};

// Connects to the coordinator. Tries again after errors that may pass (nobody listens there yet, a
// name that is not known yet), at growing intervals up to a second, until the time is up.
class ControlClient {
 public:
  struct Options {
    HostPort coordinator;
    std::optional<Secret> secret;  // required unless the coordinator's address is loopback
    ChannelOptions channel;
    Duration connect_timeout = std::chrono::seconds(60);  // for all tries together
    bool once = false;                                    // does not try again, whatever the error
  };
  // kRefused: wrong secret, or the coordinator has none (not tried again). kInvalid: no secret
  // where one is required. kTimeout: "127.0.0.1:7070: not reached within 60 s: Connection refused".
  // kUnavailable: the one try came to nothing.
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
