#include "coordinator/round/algorithm_choice.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/routes.h"

namespace lockstep::coordinator {
namespace {

constexpr std::array kAll = {ExchangeAlgorithm::kDirect, ExchangeAlgorithm::kRing,
                             ExchangeAlgorithm::kTree};
constexpr std::uint32_t kRoundsToKnow = 8;
// A change is worth it below this fraction of the present algorithm's time.
constexpr double kClearly = 0.8;

// The cost of a message at either end: a few system calls and a wake-up.
constexpr double kMessageSeconds = 10e-6;
constexpr double kRidesBytes = 32 << 10;  // worker::MachineConfig::inline_bytes
// As worker/core/routed_sums.cc cuts.
constexpr double kLeastPieceBytes = 64 << 10;
constexpr double kMostPieceBytes = 1 << 20;
constexpr double kGrainBytes = 4096;

std::string Text(Duration duration) {
  const double ms = 1e3 * Seconds(duration);
  return ms < 10 ? fmt::format("{:.2f} ms", ms) : fmt::format("{:.0f} ms", ms);
}

}  // namespace

Duration PredictExchange(ExchangeAlgorithm algorithm, std::uint32_t workers, std::uint64_t bytes,
                         const MeasuredLinks& links) {
  const double n = workers;
  const double all = static_cast<double>(bytes);
  const double per_byte = 1 / links.bytes_per_second;
  const double latency = Seconds(links.latency);
  // A sum too large for its announcement takes two more messages: request and answer.
  const auto messages = [](double what) { return what <= kRidesBytes ? 1.0 : 3.0; };
  if (algorithm == ExchangeAlgorithm::kDirect) {
    const double shards = std::min(n, std::max(1.0, all / kGrainBytes));
    const double each = messages(all / shards);
    return FromSeconds(
        2 * (each * (latency + kMessageSeconds * (n - 1)) + all * (n - 1) / n * per_byte));
  }
  const bool tree = algorithm == ExchangeAlgorithm::kTree;
  const double shard = tree ? all / 2 : all;
  const double piece =
      std::min(shard, std::clamp(all / (8 * n), kLeastPieceBytes, kMostPieceBytes));
  const double below = tree ? 2 : 1;
  const double hop =
      messages(shard) * (latency + below * kMessageSeconds) + below * piece * per_byte;
  return FromSeconds(2 * ((DepthOf(algorithm, workers) - 1) * hop + all * per_byte));
}

AlgorithmChoice::AlgorithmChoice(const std::string& name) : auto_(name == "auto") {
  for (const ExchangeAlgorithm algorithm : kAll) {
    if (AlgorithmName(algorithm) == name) chosen_ = algorithm;
  }
  reason_ = auto_ ? "" : "exchange.algorithm names it";
}

// Rounds of another number of workers say nothing about these, unless it is about the same.
ExchangeAlgorithm AlgorithmChoice::Choose(std::uint32_t workers, std::uint64_t bytes,
                                          const MeasuredLinks& links,
                                          const std::string& only_direct) {
  if (!auto_) return chosen_;
  const bool was_only_direct = !std::exchange(only_direct_, only_direct).empty();
  if (!only_direct.empty()) {
    Take(ExchangeAlgorithm::kDirect, only_direct);
    return chosen_;
  }
  if (was_only_direct) {
    reason_.clear();
    tried_ = {};
  }
  if (links.all_mapped) {
    Take(ExchangeAlgorithm::kDirect, "the workers read each other's memory");
    return chosen_;
  }
  if (links.bytes_per_second <= 0) {
    Take(ExchangeAlgorithm::kDirect, "the links were not measured");
    return chosen_;
  }
  if (4 * workers < 3 * workers_ || 4 * workers > 5 * workers_) {
    workers_ = workers;
    tried_ = {};
  }
  const Tried& present = tried_[static_cast<std::size_t>(chosen_)];
  const bool first = reason_.empty();
  if (!first && present.rounds < kRoundsToKnow) return chosen_;
  const Cost now = CostOf(chosen_, bytes, links);
  ExchangeAlgorithm best = chosen_;
  Cost least = now;
  for (const ExchangeAlgorithm algorithm : kAll) {
    const Cost cost = CostOf(algorithm, bytes, links);
    if (cost.of < least.of) {
      best = algorithm;
      least = cost;
    }
  }
  if (Seconds(least.of) > kClearly * Seconds(now.of)) best = chosen_;
  const auto takes = [](const Cost& cost) {
    return fmt::format("{} {}", cost.measured ? "takes" : "should take", Text(cost.of));
  };
  std::string reason = fmt::format("{} workers, {:.2f} MiB, {:.2f} GB/s, {:.0f} us: ", workers,
                                   static_cast<double>(bytes) / (1 << 20),
                                   links.bytes_per_second / 1e9, 1e6 * Seconds(links.latency));
  if (best == chosen_) {
    for (const ExchangeAlgorithm algorithm : kAll) {
      reason += fmt::format("{}{} {}", algorithm == kAll[0] ? "" : ", ", AlgorithmName(algorithm),
                            takes(CostOf(algorithm, bytes, links)));
    }
  } else {
    reason += fmt::format("{} {}, and {} {}", AlgorithmName(best), takes(least),
                          AlgorithmName(chosen_), takes(now));
  }
  if (first || best != chosen_) Take(best, std::move(reason));
  return chosen_;
}

AlgorithmChoice::Cost AlgorithmChoice::CostOf(ExchangeAlgorithm algorithm, std::uint64_t bytes,
                                              const MeasuredLinks& links) const {
  const Tried& tried = tried_[static_cast<std::size_t>(algorithm)];
  if (tried.rounds >= kRoundsToKnow) return {*tried.took.Median(), true};
  return {PredictExchange(algorithm, workers_, bytes, links), false};
}

void AlgorithmChoice::OnRound(ExchangeAlgorithm algorithm, Duration took) {
  Tried& tried = tried_[static_cast<std::size_t>(algorithm)];
  tried.took.Add(took);
  ++tried.rounds;
}

void AlgorithmChoice::Take(ExchangeAlgorithm algorithm, std::string reason) {
  news_ = news_ || reason_.empty() || algorithm != chosen_;
  chosen_ = algorithm;
  reason_ = std::move(reason);
}

bool AlgorithmChoice::TakeNews() { return std::exchange(news_, false); }

}  // namespace lockstep::coordinator
