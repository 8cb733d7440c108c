#include "worker/runtime/run_metrics.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/ini.h"

namespace lockstep::worker {

Status RunMetrics::Log(Metric metric, std::uint64_t samples) {
  if (metric.name.empty() || metric.name.size() > kMaxMetricNameBytes) {
    return Error{ErrorCode::kInvalid, fmt::format("a metric's name has {} bytes, of 1 to {}",
                                                  metric.name.size(), kMaxMetricNameBytes)};
  }
  if (!IsPrintable(metric.name)) {
    return Error{ErrorCode::kInvalid,
                 fmt::format("a metric's name, {}, is no printable text", Quoted(metric.name))};
  }
  const bool mean = metric.reduction == Reduction::kMean;
  if (mean && (metric.samples == 0 || metric.samples > samples)) {
    return Error{ErrorCode::kInvalid,
                 fmt::format("{} is a mean over {} samples of a run that has {}", metric.name,
                             metric.samples, samples)};
  }
  if (!mean) metric.samples = 0;
  const auto same = [&](const Metric& other) { return SameMetric(other, metric); };
  if (std::ranges::any_of(logged_, same)) {
    return Error{ErrorCode::kInvalid, fmt::format("{} was logged twice in a run", metric.name)};
  }
  const auto name = std::pair(metric.name, metric.reduction);
  if (names_.size() >= kMaxMetrics && !names_.contains(name)) {
    return Error{ErrorCode::kInvalid,
                 fmt::format("{} is one metric more than the {} that a job can have", metric.name,
                             kMaxMetrics)};
  }
  names_.insert(name);
  logged_.push_back(std::move(metric));
  return {};
}

}  // namespace lockstep::worker
