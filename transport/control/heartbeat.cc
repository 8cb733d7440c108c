#include "transport/control/heartbeat.h"

#include <algorithm>

namespace lockstep::transport::control {
namespace {

// Clocks drift; an estimate covers the last few minutes.
constexpr std::size_t kSamples = 64;
constexpr int kPingsPerTimeout = 4;
constexpr int kTimeoutsForAFrame = 6;

}  // namespace

Heartbeat::Heartbeat(Duration timeout, Time now)
    : timeout_(timeout), deaf_since_(now), last_frame_(now), last_tick_(now), next_ping_(now) {}

Heartbeat::Verdict Heartbeat::Tick(Time now, bool unread) {
  const Duration late = now - last_tick_ - interval();
  last_tick_ = now;
  if (late > timeout_ / kPingsPerTimeout) {
    deaf_since_ = std::min(now, deaf_since_ + late);
    last_frame_ = std::min(now, last_frame_ + late);
    next_ping_ = now;
  }
  if (!unread && now - deaf_since_ >= timeout_) return Verdict::kSilent;
  if (now - last_frame_ >= kTimeoutsForAFrame * timeout_) return Verdict::kDripping;
  return Verdict::kAlive;
}

std::optional<msg::Ping> Heartbeat::PingDue(Time now) {
  if (now < next_ping_) return std::nullopt;
  return PingNow(now);
}

msg::Ping Heartbeat::PingNow(Time now) {
  next_ping_ = now + timeout_ / kPingsPerTimeout;
  return msg::Ping{++sent_, now.time_since_epoch().count()};
}

bool Heartbeat::OnPong(const msg::Pong& pong, Time now) {
  const Time sent{Duration(pong.ping_sent_ns)};
  if (pong.sequence == 0 || pong.sequence > sent_ || sent > now || pong.ping_sent_ns < 0 ||
      pong.answered_ns < 0) {
    return false;
  }
  const Duration rtt = now - sent;
  samples_.push_back({rtt, Time(Duration(pong.answered_ns)) - (sent + rtt / 2)});
  if (samples_.size() > kSamples) samples_.pop_front();
  clock_ = *std::ranges::min_element(samples_, {}, &ClockEstimate::rtt);
  return true;
}

}  // namespace lockstep::transport::control
