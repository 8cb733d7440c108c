// A number that a program logs about its computation, such as an accuracy. It is reduced over all
// that the round counts, like the loss.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace lockstep {

enum class Reduction : std::uint8_t { kMean, kSum, kMin, kMax };
inline constexpr std::uint32_t kReductions = 4;
const char* Name(Reduction reduction);

// The most metrics of a round; the same bound holds for a worker's message and for a commit.
inline constexpr std::size_t kMaxMetrics = 64;
inline constexpr std::size_t kMaxMetricNameBytes = 64;

struct Metric {
  std::string name;
  Reduction reduction = Reduction::kMean;
  double value = 0;           // kMean: the sum over its samples
  std::uint64_t samples = 0;  // kMean: how many they are; else 0

  bool operator==(const Metric&) const = default;
};

// The same name with another reduction is another metric.
bool SameMetric(const Metric& a, const Metric& b);

// Merges `from` into `to`, which is sorted by name. The order of the merges decides the last bits.
// A value that is not a number stays one, whatever is merged with it.
void Merge(const std::vector<Metric>& from, std::vector<Metric>* to);

// The value for people: a mean is divided by its samples.
double ValueOf(const Metric& metric);

}  // namespace lockstep
