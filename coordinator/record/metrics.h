// The metrics of a running job in the text format of Prometheus (version 0.0.4): GET /metrics.
// docs/reference/metrics.md lists the metrics; their names and labels are a contract.
//
// In: each round as it is closed. Out: the text, out of that and the job's present status.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>

#include "coordinator/job/records.h"

namespace lockstep::coordinator {

class JobMetrics {
 public:
  // A closed round; each once.
  void Note(const RoundRecord& record);
  // `links`: whose speed was measured. Each is a series, so who asks sees to it that they are not
  // too many (Members::MeasuredPaths).
  std::string Text(const JobStatus& status, std::span<const PathRecord> links = {}) const;

 private:
  // Upper bounds of round times in seconds: from rounds that are nothing but exchange to those that
  // wait for somebody who is stopped.
  static constexpr std::array<double, 16> kBounds = {
      0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100};
  struct Histogram {
    std::array<std::uint64_t, kBounds.size()> counts{};  // each without those before it
    std::uint64_t count = 0;
    double sum = 0;
    void Add(double seconds);
  };
  static std::string HistogramText(const char* name, const char* help, const Histogram& histogram);

  Histogram rounds_;     // from the plan, which is the commit of the round before, to the commit
  Histogram exchanges_;  // from the commit until the last member has applied it
  std::uint64_t attempts_ = 0;  // that had to be made beside the first ones
  std::uint64_t moves_ = 0;     // ranges of samples
};

}  // namespace lockstep::coordinator
