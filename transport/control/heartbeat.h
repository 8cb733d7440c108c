// Decides when to ping and when silence means death, and estimates the other end's clock from the
// pings. It is pure: time comes in.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>

#include "base/messages.h"
#include "base/time.h"
#include "transport/control/channel.h"

namespace lockstep::transport::control {

class Heartbeat {
 public:
  Heartbeat(Duration timeout, Time now);

  // Tick is called about this often.
  Duration interval() const { return timeout_ / 16; }

  void OnBytes(Time now) { deaf_since_ = now; }
  void OnFrame(Time now) { last_frame_ = now; }

  enum class Verdict {
    kAlive,
    kSilent,    // nothing for the time-out
    kDripping,  // bytes, but no whole message for several time-outs
  };
  // `unread`: bytes wait in the socket, so their sender is not silent. A Tick that comes much too
  // late means that this process was stopped or busy. It could not hear anything meanwhile, so all
  // waits begin later by as much.
  Verdict Tick(Time now, bool unread);

  // The next ping, when one is due: every quarter of the time-out, whatever else is sent, and at
  // once after such a gap.
  std::optional<msg::Ping> PingDue(Time now);
  // A ping at once, for a caller that asks for a sign of life.
  msg::Ping PingNow(Time now);
  // False: it answers no ping of ours.
  bool OnPong(const msg::Pong& pong, Time now);

  // The estimate from the fastest answer among the recent ones.
  const std::optional<ClockEstimate>& clock() const { return clock_; }

 private:
  Duration timeout_;
  // When the last byte and the last whole message came, later by the gaps since then.
  Time deaf_since_;
  Time last_frame_;
  Time last_tick_;
  Time next_ping_;
  std::uint64_t sent_ = 0;
  std::deque<ClockEstimate> samples_;
  std::optional<ClockEstimate> clock_;  // the fastest of them; each message asks for it
};

}  // namespace lockstep::transport::control
