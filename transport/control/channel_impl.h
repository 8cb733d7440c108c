// The two kinds of channel over the common core. Internal.
#pragma once

#include <type_traits>

#include "base/free_memory.h"
#include "transport/control/channel_core.h"
#include "transport/control/codec.h"

namespace lockstep::transport::control {

template <class Out, class In>
class Channel<Out, In>::Impl final : public ChannelCore {
 public:
  using ChannelCore::ChannelCore;

  void Listen(Handler handler) {
    handler_ = std::make_shared<const Handler>(std::move(handler));
    Begin();
  }

  std::uint64_t Ping() {
    const msg::Ping ping = heartbeat_.PingNow(MonotonicNow());
    if constexpr (kPings) Send(MakeFrame(Out(ping)));
    return ping.sequence;
  }

 private:
  static constexpr bool kPings = std::is_same_v<Out, msg::ToWorker>;

  Status OnFrame(std::span<const std::byte> bytes) override {
    if constexpr (kPings) {
      Result<In> message = DecodeFromWorker(bytes);
      if (!message) return message.error();
      if (const auto* pong = std::get_if<msg::Pong>(&*message)) {
        const bool ours = heartbeat_.OnPong(*pong, MonotonicNow());
        if (const auto handler = handler_; ours && handler && handler->on_pong) {
          handler->on_pong(*pong);
        }
        return {};
      }
      return Deliver(*std::move(message));
    } else {
      Result<In> message = DecodeToWorker(bytes);
      if (!message) return message.error();
      if (const auto* ping = std::get_if<msg::Ping>(&*message)) {
        const bool says = handler_ != nullptr && handler_->run_in_hand;
        Send(MakeFrame(
            Out(msg::Pong{ping->sequence, ping->sent_ns, MonotonicNow().time_since_epoch().count(),
                          ResidentBytes(), says ? handler_->run_in_hand() : msg::RunInHand()})));
        return {};
      }
      return Deliver(*std::move(message));
    }
  }

  // A callback may drop the channel and with it the handler, so the handler is held for the length
  // of the call.
  Status Deliver(In message) {
    if (const auto handler = handler_) handler->on_message(std::move(message));
    return {};
  }

  void OnClosed(const Error& reason) override {
    const auto handler = std::exchange(handler_, nullptr);
    if (handler) handler->on_closed(reason);
  }

  void OnDrained() override {
    const auto handler = handler_;
    if (handler && handler->on_drained) handler->on_drained();
  }

  bool WantsDrained() const override { return handler_ && handler_->on_drained; }

  void Forget() override { handler_ = nullptr; }

  std::optional<Frame> PingFrame([[maybe_unused]] Time now) override {
    if constexpr (kPings) {
      if (const auto ping = heartbeat_.PingDue(now)) return MakeFrame(Out(*ping));
    }
    return std::nullopt;
  }

  std::shared_ptr<const Handler> handler_;
};

}  // namespace lockstep::transport::control
