#include "transport/control/channel.h"

#include "transport/control/channel_impl.h"

namespace lockstep::transport::control {

Frame MakeFrame(const msg::ToWorker& message) {
  return {std::make_shared<const std::string>(FrameOf(Encode(message)))};
}

Frame MakeFrame(const msg::FromWorker& message) {
  return {std::make_shared<const std::string>(FrameOf(Encode(message)))};
}

template <class Out, class In>
Channel<Out, In>::Channel(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}

template <class Out, class In>
Channel<Out, In>::~Channel() {
  impl_->Abandon();
}

template <class Out, class In>
void Channel<Out, In>::Start(Handler handler) {
  LOCKSTEP_CHECK(handler.on_message && handler.on_closed, "a channel needs both callbacks");
  impl_->Listen(std::move(handler));
}

template <class Out, class In>
void Channel<Out, In>::Send(const Out& message) {
  impl_->Send(MakeFrame(message));
}

template <class Out, class In>
void Channel<Out, In>::Send(const Frame& frame) {
  impl_->Send(frame);
}

template <class Out, class In>
void Channel<Out, In>::SendSoon(const Frame& frame) {
  impl_->SendSoon(frame);
}

template <class Out, class In>
std::size_t Channel<Out, In>::queued_bytes() const {
  return impl_->queued_bytes();
}

template <class Out, class In>
void Channel<Out, In>::Close() {
  impl_->Close();
}

template <class Out, class In>
void Channel<Out, In>::SetTimeout(Duration timeout) {
  impl_->SetTimeout(timeout);
}

template <class Out, class In>
std::uint64_t Channel<Out, In>::Ping() {
  return impl_->Ping();
}

template <class Out, class In>
std::optional<ClockEstimate> Channel<Out, In>::clock() const {
  return impl_->heartbeat().clock();
}

template <class Out, class In>
const std::string& Channel<Out, In>::remote() const {
  return impl_->remote();
}

template <class Out, class In>
const std::string& Channel<Out, In>::local_host() const {
  return impl_->local_host();
}

template class Channel<msg::ToWorker, msg::FromWorker>;
template class Channel<msg::FromWorker, msg::ToWorker>;

}  // namespace lockstep::transport::control
