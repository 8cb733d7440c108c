// The job's report about itself: the status for the progress line and HTTP, the missing workers,
// and the bounds that are printed at start. No decision depends on it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/time.h"
#include "coordinator/core/ending.h"
#include "coordinator/core/evaluation.h"
#include "coordinator/core/outliers.h"
#include "coordinator/core/repeated_times.h"
#include "coordinator/job/context.h"
#include "coordinator/job/records.h"
#include "coordinator/membership/formation.h"
#include "coordinator/membership/initial_broadcast.h"
#include "coordinator/membership/slowdowns.h"
#include "coordinator/round/pipeline.h"

namespace lockstep::coordinator {

class JobReport {
 public:
  struct Parts {
    const Formation* formation;
    const Pipeline* rounds;
    const InitialBroadcast* initial_broadcast;
    const Evaluation* evaluation;
    const Ending* ending;
    const Slowdowns* slowdowns;
  };
  JobReport(Job* job, Parts parts)
      : job_(job),
        parts_(parts),
        outliers_(job->start.workers),
        repeated_(job->start.config.job.seed) {}

  // `costs_known`: of the round's units.
  void OnClosed(const RoundRecord& record, bool costs_known);
  void OnOut(WorkerId worker) { outliers_.OnOut(worker); }
  // It has been found out that unit times belong to the data.
  bool times_of_data() const { return repeated_.found(); }
  // Costs O(members).
  JobStatus Status(Time now) const;

 private:
  // Facts of the last closed round.
  struct LastClosed {
    double commit = 0;
    double samples_per_second = 0;  // weighted mean
    std::string reason;
    std::uint32_t contributors = 0;
    std::vector<WorkerId> excluded;
  };
  MemberStatus StatusOf(const Member& member, Time now) const;

  Job* job_;
  Parts parts_;
  LastClosed last_closed_;
  Outliers outliers_;
  RepeatedTimes repeated_;
};

// Names the members that are not live, and why; for people.
std::string MissingWorkers(const Job& job);

// Lines for the log at start: each bounded container and the formula of its bound (I7).
// `connections`: without a Hello.
std::vector<std::string> BoundsInWords(const StartParameters& start, std::size_t connections);

}  // namespace lockstep::coordinator
