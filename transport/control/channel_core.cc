#include "transport/control/channel_core.h"

#include <fmt/format.h>

#include <boost/asio/post.hpp>

namespace lockstep::transport::control {
namespace {

namespace asio = boost::asio;

constexpr std::size_t kFramesAtOnce = 16;
// Messages that wait for company are copied into one write of bytes up to here.
constexpr std::size_t kHeldBytes = 16u << 10;

}  // namespace

ChannelCore::ChannelCore(std::shared_ptr<Stream> stream, FrameReader reader,
                         const ChannelOptions& options)
    : heartbeat_(options.timeout, MonotonicNow()),
      options_(options),
      stream_(std::move(stream)),
      reader_(std::move(reader)),
      held_timer_(stream_->executor()),
      timer_(stream_->executor()) {
  reader_.set_max_bytes(options_.max_message_bytes);
}

void ChannelCore::Begin() {
  LOCKSTEP_CHECK(state_ == State::kIdle, "Start is called once");
  state_ = State::kOpen;
  // Input from before the start tells nothing about how long the other end has been silent.
  heartbeat_ = Heartbeat(options_.timeout, MonotonicNow());
  BeginReading();
  asio::co_spawn(stream_->executor(), WatchLoop(shared_from_this()), RethrowFromCoroutine);
}

void ChannelCore::SetTimeout(Duration timeout) {
  options_.timeout = timeout;
  heartbeat_ = Heartbeat(timeout, MonotonicNow());
}

void ChannelCore::BeginReading() {
  asio::co_spawn(stream_->executor(), ReadLoop(shared_from_this()), RethrowFromCoroutine);
}

bool ChannelCore::MaySend() const {
  return state_ != State::kDraining && state_ != State::kClosed && !write_failed_;
}

void ChannelCore::Send(const Frame& frame) {
  if (held_.empty()) return Write(frame);
  if (held_.size() + frame.bytes->size() <= kHeldBytes) {
    held_ += *frame.bytes;
    return WriteHeld();
  }
  WriteHeld();
  Write(frame);
}

// While something is being written it would wait for that anyway, behind it in the queue.
void ChannelCore::SendSoon(const Frame& frame) {
  if (!MaySend()) return;
  if (writing_ || held_.size() + frame.bytes->size() > kHeldBytes) return Send(frame);
  if (held_.empty()) held_since_ = MonotonicNow();
  held_ += *frame.bytes;
  if (!watching_held_) WatchHeld();
}

void ChannelCore::WriteHeld() {
  if (held_.empty()) return;
  Write({std::make_shared<const std::string>(std::exchange(held_, {}))});
}

// One timer for whatever is held until it fires: to set it again for each message would cost a call
// of the system.
void ChannelCore::WatchHeld() {
  watching_held_ = true;
  held_timer_.expires_after(held_since_ + kCompany - MonotonicNow());
  held_timer_.async_wait([self = shared_from_this()](const boost::system::error_code& failure) {
    self->watching_held_ = false;
    if (failure || self->held_.empty() || !self->MaySend()) return;
    if (MonotonicNow() < self->held_since_ + kCompany) return self->WatchHeld();
    self->WriteHeld();
  });
}

void ChannelCore::Write(const Frame& frame) {
  if (!MaySend()) return;
  const std::size_t bytes = frame.bytes->size();
  if (bytes > options_.max_message_bytes + kFrameHeaderBytes) {
    return End({ErrorCode::kClosed, fmt::format("a message to send has {} bytes, {} are allowed",
                                                bytes, options_.max_message_bytes)});
  }
  if (queued_bytes_ + bytes > options_.send_queue_bytes) {
    return End({ErrorCode::kClosed,
                fmt::format("the other end does not take what is sent: {} bytes are queued, {} are "
                            "allowed",
                            queued_bytes_ + bytes, options_.send_queue_bytes)});
  }
  // Most messages find the socket empty: a send from here costs no coroutine.
  const std::size_t sent = writing_ ? 0 : stream_->WriteNow(*frame.bytes);
  if (sent == bytes) return TellDrained();
  if (!writing_) first_sent_ = sent;
  queue_.push_back(frame);
  queued_bytes_ += bytes - sent;
  if (writing_) return;
  writing_ = true;
  asio::co_spawn(stream_->executor(), WriteLoop(shared_from_this()), RethrowFromCoroutine);
}

void ChannelCore::TellDrained() {
  if (!WantsDrained() || telling_) return;
  telling_ = true;
  asio::post(stream_->executor(), [self = shared_from_this()] {
    self->telling_ = false;
    if (!self->writing_ && self->state_ == State::kOpen) self->OnDrained();
  });
}

void ChannelCore::Close() {
  if (state_ == State::kDraining || state_ == State::kClosed) return;
  WriteHeld();
  if (state_ == State::kClosed) return;  // the other end does not take it
  const bool reading = state_ == State::kOpen;
  state_ = State::kDraining;
  // Discards input up to the other end's own close: closing with unread bytes would throw away our
  // last output.
  if (!reading) BeginReading();
  if (!writing_) stream_->ShutdownSend();
  timer_.expires_after(options_.timeout);
  timer_.async_wait([self = shared_from_this()](const boost::system::error_code& failure) {
    if (!failure) self->End({ErrorCode::kClosed, "closed here"});
  });
}

void ChannelCore::Abandon() {
  Forget();
  Close();
}

void ChannelCore::End(const Error& reason) {
  if (state_ == State::kClosed) return;
  const bool asked_for = state_ == State::kDraining;
  state_ = State::kClosed;
  queue_.clear();
  queued_bytes_ = 0;
  held_.clear();
  stream_->Close();
  held_timer_.cancel();
  timer_.cancel();
  const Error told = asked_for ? Error{ErrorCode::kClosed, "closed here"} : reason;
  asio::post(stream_->executor(), [self = shared_from_this(), told] { self->OnClosed(told); });
}

Status ChannelCore::DeliverFrames() {
  while (state_ == State::kOpen) {
    const auto frame = reader_.Next();
    if (!frame) return frame.error();
    if (!*frame) break;
    heartbeat_.OnFrame(MonotonicNow());
    if (Status taken = OnFrame(**frame); !taken) return taken;
  }
  return {};
}

asio::awaitable<void> ChannelCore::ReadLoop(std::shared_ptr<ChannelCore> self) {
  boost::system::error_code failure;
  while (self->state_ != State::kClosed) {
    if (Status delivered = self->DeliverFrames(); !delivered) self->End(delivered.error());
    if (self->state_ == State::kClosed) break;
    const std::size_t got = co_await self->stream_->ReadSome(asio::buffer(self->buffer_), failure);
    if (failure) {
      self->End(WhyEnded(failure));
      break;
    }
    self->heartbeat_.OnBytes(MonotonicNow());
    if (self->state_ == State::kOpen) self->reader_.Append(std::span(self->buffer_).first(got));
  }
}

asio::awaitable<void> ChannelCore::WriteLoop(std::shared_ptr<ChannelCore> self) {
  std::vector<Frame> batch;
  std::vector<asio::const_buffer> buffers;
  boost::system::error_code failure;
  while (!self->queue_.empty()) {
    batch.clear();
    buffers.clear();
    std::size_t bytes = 0;
    for (const Frame& frame : self->queue_) {
      if (batch.size() == kFramesAtOnce) break;
      batch.push_back(frame);
      buffers.push_back(asio::buffer(*frame.bytes) + std::exchange(self->first_sent_, 0));
      bytes += buffers.back().size();
    }
    co_await self->stream_->Write(buffers, failure);
    if (self->state_ == State::kClosed) co_return;
    if (failure) {
      // The other end's last words may still be in the socket: the reader ends the connection.
      self->write_failed_ = true;
      self->queue_.clear();
      self->queued_bytes_ = 0;
      break;
    }
    self->queue_.erase(self->queue_.begin(),
                       self->queue_.begin() + static_cast<std::ptrdiff_t>(batch.size()));
    self->queued_bytes_ -= bytes;
  }
  self->writing_ = false;
  if (self->state_ == State::kDraining) {
    self->stream_->ShutdownSend();
  } else if (!self->write_failed_) {
    self->OnDrained();
  }
}

void ChannelCore::PingOrEnd() {
  const Time now = MonotonicNow();
  switch (heartbeat_.Tick(now, stream_->HasUnread())) {
    case Heartbeat::Verdict::kSilent:
      return End(
          {ErrorCode::kTimeout, fmt::format("no heartbeat for {:g} s", Seconds(options_.timeout))});
    case Heartbeat::Verdict::kDripping:
      return End({ErrorCode::kTimeout, "bytes, but no whole message for too long"});
    case Heartbeat::Verdict::kAlive:
      break;
  }
  if (const auto ping = PingFrame(now)) Send(*ping);
}

asio::awaitable<void> ChannelCore::WatchLoop(std::shared_ptr<ChannelCore> self) {
  boost::system::error_code failure;
  while (self->state_ == State::kOpen) {
    self->PingOrEnd();
    if (self->state_ != State::kOpen) break;
    self->timer_.expires_after(self->heartbeat_.interval());
    co_await self->timer_.async_wait(asio::redirect_error(asio::use_awaitable, failure));
  }
}

}  // namespace lockstep::transport::control
