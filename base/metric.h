// A number that a program logs about what it computes, as an accuracy: reduced over all that a
// round counts, like the loss.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace lockstep {

enum class Reduction : std::uint8_t { kMean, kSum, kMin, kMax };
inline constexpr std::uint32_t kReductions = 4;
const char* Name(Reduction reduction);

// In a round; what a worker says and what is committed are bounded alike.
inline constexpr std::size_t kMaxMetrics = 64;
inline constexpr std::size_t kMaxMetricNameBytes = 64;

struct Metric {
  std::string name;
  Reduction reduction = Reduction::kMean;
  double value = 0;           // kMean: the sum over its samples
  std::uint64_t samples = 0;  // kMean: how many they are; else 0

  bool operator==(const Metric&) const = default;
};

// Of the same name by another reduction is another metric.
bool SameMetric(const Metric& a, const Metric& b);

// `from` joins `to`, which is sorted by name. The order of what is merged decides the last bits.
// What is not a number stays so, whatever comes to it.
void Merge(const std::vector<Metric>& from, std::vector<Metric>* to);

// What people want to know: a mean is divided.
double ValueOf(const Metric& metric);

}  // namespace lockstep
