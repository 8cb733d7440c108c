#include "base/metric.h"

#include <algorithm>
#include <cmath>
#include <tuple>

namespace lockstep {
namespace {

// std::min and std::max would let the order decide whether a NaN is seen.
double Extreme(double a, double b, bool least) {
  if (std::isnan(a) || std::isnan(b)) return std::nan("");
  return least ? std::min(a, b) : std::max(a, b);
}

}  // namespace

const char* Name(Reduction reduction) {
  switch (reduction) {
    case Reduction::kMean:
      return "mean";
    case Reduction::kSum:
      return "sum";
    case Reduction::kMin:
      return "min";
    case Reduction::kMax:
      return "max";
  }
  return "";
}

bool SameMetric(const Metric& a, const Metric& b) {
  return a.reduction == b.reduction && a.name == b.name;
}

void Merge(const std::vector<Metric>& from, std::vector<Metric>* to) {
  for (const Metric& metric : from) {
    const auto same = std::ranges::lower_bound(*to, metric, [](const Metric& a, const Metric& b) {
      return std::tie(a.name, a.reduction) < std::tie(b.name, b.reduction);
    });
    if (same == to->end() || !SameMetric(*same, metric)) {
      to->insert(same, metric);
      continue;
    }
    switch (metric.reduction) {
      case Reduction::kMean:
      case Reduction::kSum:
        same->value += metric.value;
        same->samples += metric.samples;
        break;
      case Reduction::kMin:
      case Reduction::kMax:
        same->value = Extreme(same->value, metric.value, metric.reduction == Reduction::kMin);
        break;
    }
  }
}

double ValueOf(const Metric& metric) {
  return metric.reduction == Reduction::kMean ? metric.value / static_cast<double>(metric.samples)
                                              : metric.value;
}

}  // namespace lockstep
