#include "coordinator/job/bounds.h"

#include <algorithm>

namespace lockstep::coordinator {
namespace {

constexpr int kTimesUsual = 10;
constexpr int kTimesUsualToHedge = 4;
constexpr Duration kLeastToHedge = std::chrono::milliseconds(2);
// As many rounds as there are buffers of sums; of many owners as many samples as settle a median.
constexpr std::size_t kRoundsToHedge = 4;
constexpr std::size_t kSamplesToHedge = 48;
// SHA-256 on one slow core.
constexpr double kDigestBytesPerSecond = 100e6;

}  // namespace

// The slowest path, as a round waits for the last of its members. Without a measurement nothing is
// assumed, and the first rounds get the bounds of the time-out alone.
void Bounds::NotePaths(std::uint64_t parameter_bytes, double slowest_bytes_per_second) {
  exchange_.reset();
  if (slowest_bytes_per_second <= 0) return;
  // Each member sends and receives about the parameters' size before the commit and after it.
  exchange_ = FromSeconds(2.0 * static_cast<double>(parameter_bytes) / slowest_bytes_per_second);
}

// Ten times the usual lets a slow round pass. The cap keeps a fail-over well inside the time-out.
// It is never below twice the usual, or a job with large sums would fail over for ever.
Duration Bounds::OfOwner(const RecentLatency& latency, Duration least) const {
  if (const auto usual = latency.Median()) {
    return std::max(least, std::min(kTimesUsual * *usual, std::max(timeout_ / 2, 2 * *usual)));
  }
  return std::max({kLeastPublication, timeout_ / 4, 2 * exchange_.value_or(Duration{})});
}

// It comes well before an owner is blamed, so that the stand-in may be in time, and late enough to
// be seldom useless.
std::optional<Duration> Bounds::Hedge(std::size_t owners) const {
  const auto usual = publication_.Median();
  if (!usual || publication_.count() < std::min(kRoundsToHedge * owners, kSamplesToHedge)) {
    return std::nullopt;
  }
  return std::min(kTimesUsualToHedge * *usual + kLeastToHedge, Publication());
}

// Bulk transfers share the links with rounds, so the time of a recent whole round bounds them all.
Duration Bounds::OfBulk(int timeouts) const {
  const Duration usual = application_.Median().value_or(exchange_.value_or(Duration{}));
  return std::max(timeouts * timeout_, kTimesUsual * usual);
}

// Evaluation has the time that training leaves, so a chunk may well take as long as a time-out.
Duration Bounds::EvaluationChunk() const {
  return std::max(timeout_, kTimesUsual * evaluation_.Median().value_or(Duration{}));
}

// It is taken once, so there is nothing usual to go by, but the size.
Duration Bounds::FinalDigest(std::uint64_t parameter_bytes) const {
  return std::max(timeout_,
                  FromSeconds(static_cast<double>(parameter_bytes) / kDigestBytesPerSecond));
}

}  // namespace lockstep::coordinator
