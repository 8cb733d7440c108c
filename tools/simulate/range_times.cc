#include "tools/simulate/range_times.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

namespace lockstep::simulate {
namespace {

constexpr std::size_t kLeastRounds = 4;
constexpr double kSpread = 0.05;    // of the logarithm of a unit's time: less does not matter
constexpr double kMuchBetween = 2;  // times the variance of means of units at random
constexpr double kMuchSpread = 4;   // times the median worker's variance

struct Share {
  double mean = 0;      // of the logarithms of its units' times
  double variance = 0;  // of them
  double units = 0;     // entries of the record: units whose times are known together are one
};

// One row for each round in which all workers have units with known times.
using Shares = std::vector<std::vector<Share>>;

std::optional<std::vector<Share>> SharesOf(const coordinator::RoundRecord& record,
                                           std::uint32_t workers, double run_cost) {
  std::vector<std::vector<double>> logs(workers);
  for (const coordinator::UnitRecord& unit : record.units) {
    const double seconds = unit.end - unit.start;
    if (!(seconds > 0)) return std::nullopt;
    logs[unit.worker.value].push_back(
        std::log(seconds / (1 + run_cost / static_cast<double>(unit.run)) /
                 static_cast<double>(unit.range.size())));
  }
  std::vector<Share> shares;
  for (const std::vector<double>& of_worker : logs) {
    if (of_worker.size() < 2) return std::nullopt;
    Share share;
    share.units = static_cast<double>(of_worker.size());
    for (const double log : of_worker) share.mean += log / share.units;
    for (const double log : of_worker) {
      share.variance += (log - share.mean) * (log - share.mean) / (share.units - 1);
    }
    shares.push_back(share);
  }
  return shares;
}

struct Effects {
  std::vector<double> workers;  // how much longer than the mean each takes, in logarithms
  double rest = 0;              // variance of the shares' means, apart from workers and rounds
};

// Two-way analysis of variance of the shares' means.
Effects EffectsOf(const Shares& shares) {
  const auto rounds = static_cast<double>(shares.size());
  const auto workers = static_cast<double>(shares.front().size());
  Effects effects;
  effects.workers.resize(shares.front().size());
  std::vector<double> of_round(shares.size());
  double mean = 0;
  for (std::size_t r = 0; r < shares.size(); ++r) {
    for (std::size_t w = 0; w < shares[r].size(); ++w) {
      effects.workers[w] += shares[r][w].mean / rounds;
      of_round[r] += shares[r][w].mean / workers;
    }
    mean += of_round[r] / rounds;
  }
  for (double& effect : effects.workers) effect -= mean;
  for (std::size_t r = 0; r < shares.size(); ++r) {
    for (std::size_t w = 0; w < shares[r].size(); ++w) {
      const double rest = shares[r][w].mean - of_round[r] - effects.workers[w];
      effects.rest += rest * rest / ((rounds - 1) * (workers - 1));
    }
  }
  return effects;
}

}  // namespace

void RangeTimes::Sort() {
  for (auto& [epoch, entries] : epochs_) {
    std::ranges::stable_sort(entries, {}, [](const Entry& entry) { return entry.range.from; });
    std::uint64_t at = 0;
    std::erase_if(entries, [&at](const Entry& entry) {
      if (entry.range.from < at) return true;
      at = entry.range.to;
      return false;
    });
  }
}

std::span<const RangeTimes::Entry> RangeTimes::Find(Epoch epoch, const SampleRange& range) const {
  const auto of_epoch = epochs_.find(epoch);
  if (of_epoch == epochs_.end()) return {};
  const std::span<const Entry> entries = of_epoch->second;
  const auto begin =
      std::ranges::upper_bound(entries, range.from, {}, [](const Entry& e) { return e.range.to; });
  std::uint64_t at = range.from;
  auto end = begin;
  for (; at < range.to; ++end) {
    if (end == entries.end() || end->range.from > at) return {};
    at = end->range.to;
  }
  return {begin, end};
}

std::vector<double> WorkerFactorsIfTimesAreOfSamples(
    const std::vector<coordinator::RoundRecord>& records, std::uint32_t workers, double run_cost) {
  Shares shares;
  for (const coordinator::RoundRecord& record : records) {
    if (auto of_round = SharesOf(record, workers, run_cost)) shares.push_back(*std::move(of_round));
  }
  if (workers < 2 || shares.size() < kLeastRounds) return {};
  const Effects effects = EffectsOf(shares);
  const double count = static_cast<double>(shares.size()) * workers;
  double within = 0;
  double by_chance = 0;  // variance of the shares' means, if they are of units at random
  std::vector<double> of_worker(workers);
  for (const std::vector<Share>& of_round : shares) {
    for (std::size_t w = 0; w < of_round.size(); ++w) {
      within += of_round[w].variance / count;
      by_chance += of_round[w].variance / of_round[w].units / count;
      of_worker[w] += of_round[w].variance;
    }
  }
  std::ranges::sort(of_worker);
  if (within < kSpread * kSpread || effects.rest > kMuchBetween * by_chance ||
      of_worker.back() > kMuchSpread * of_worker[workers / 2]) {
    return {};
  }
  std::vector<double> factors;
  for (const double effect : effects.workers) factors.push_back(std::exp(effect));
  return factors;
}

}  // namespace lockstep::simulate
