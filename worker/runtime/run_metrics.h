// The metrics that the training program logs in a run, until the run is reported.
//
// Not thread-safe: it is the compute thread's.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/metric.h"
#include "base/result.h"

namespace lockstep::worker {

class RunMetrics {
 public:
  // `samples`: of the run. kInvalid: the name is no printable text of at most kMaxMetricNameBytes,
  // or it is a mean over no samples, or over more than the run has. So are the same metric twice in
  // a run, and one beyond kMaxMetrics.
  Status Log(Metric metric, std::uint64_t samples);
  // Those since the last time.
  std::vector<Metric> TakeLogged() { return std::exchange(logged_, {}); }

 private:
  std::vector<Metric> logged_;
  std::set<std::pair<std::string, Reduction>> names_;  // ever
};

}  // namespace lockstep::worker
