// The common part of both kinds of Channel: frames in and out of a stream, heartbeats, the end.
// Internal; one thread. It lives until its coroutines have ended, however long its Channel lives.
#pragma once

#include "transport/control/coroutines.h"

#include <array>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "transport/control/channel.h"
#include "transport/control/frame.h"
#include "transport/control/heartbeat.h"
#include "transport/control/stream.h"

namespace lockstep::transport::control {

class ChannelCore : public std::enable_shared_from_this<ChannelCore> {
 public:
  // `reader` may hold bytes that were read already.
  ChannelCore(std::shared_ptr<Stream> stream, FrameReader reader, const ChannelOptions& options);
  virtual ~ChannelCore() = default;

  void Begin();
  void Send(const Frame& frame);
  void SendSoon(const Frame& frame);
  void Close();
  void SetTimeout(Duration timeout);
  // No more callbacks come; it drains as Close does.
  void Abandon();

  std::size_t queued_bytes() const { return queued_bytes_ + held_.size(); }
  const Heartbeat& heartbeat() const { return heartbeat_; }
  const std::string& remote() const { return stream_->remote(); }
  const std::string& local_host() const { return stream_->local_host(); }

 protected:
  // Called with each frame while the channel is open and attached.
  virtual Status OnFrame(std::span<const std::byte> bytes) = 0;
  virtual void OnClosed(const Error& reason) = 0;
  virtual void OnDrained() = 0;
  virtual bool WantsDrained() const = 0;
  // Drops the user's callbacks.
  virtual void Forget() = 0;
  // nullopt: this end does not ping.
  virtual std::optional<Frame> PingFrame(Time now) = 0;

  Heartbeat heartbeat_;

 private:
  enum class State {
    kIdle,  // before Begin
    kOpen,
    kDraining,  // sends what is queued, receives nothing
    kClosed,
  };

  static boost::asio::awaitable<void> ReadLoop(std::shared_ptr<ChannelCore> self);
  static boost::asio::awaitable<void> WriteLoop(std::shared_ptr<ChannelCore> self);
  static boost::asio::awaitable<void> WatchLoop(std::shared_ptr<ChannelCore> self);
  Status DeliverFrames();
  bool MaySend() const;
  void Write(const Frame& frame);
  void WriteHeld();
  void WatchHeld();
  void BeginReading();
  void TellDrained();
  void PingOrEnd();
  void End(const Error& reason);

  ChannelOptions options_;
  std::shared_ptr<Stream> stream_;
  FrameReader reader_;
  State state_ = State::kIdle;
  bool writing_ = false;
  bool write_failed_ = false;
  std::deque<Frame> queue_;
  std::size_t queued_bytes_ = 0;
  std::size_t first_sent_ = 0;  // bytes of the first frame in queue_ that have gone out
  bool telling_ = false;        // a wait until all has gone out is under way
  // Whole frames of SendSoon. While they wait, queue_ is empty.
  std::string held_;
  Time held_since_;
  bool watching_held_ = false;
  boost::asio::steady_timer held_timer_;
  boost::asio::steady_timer timer_;
  std::array<std::byte, 16384> buffer_;
};

}  // namespace lockstep::transport::control
