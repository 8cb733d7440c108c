#include "coordinator/round/not_finite.h"

#include <fmt/format.h>

#include "base/interval_set.h"

namespace lockstep::coordinator {

std::string NotFiniteText(const Job& job, const RoundWork& work, WorkerId worker,
                          std::span<const UnitTiming> units) {
  IntervalSet ranges;
  for (const UnitTiming& timing : units) (void)ranges.Add(timing.unit.range);
  std::string samples;
  for (const SampleRange& range : ranges.Ranges()) {
    samples += fmt::format("{}[{}, {})", samples.empty() ? "" : ", ", range.from, range.to);
  }
  std::string what = fmt::format(
      "round {}: the loss or gradient of worker {} over the samples {} of epoch {} is not finite",
      work.round(), worker, samples, work.epoch());
  if (const std::string& type = job.start.config.exchange.dtype; type != "fp32") {
    what += fmt::format(", or beyond the largest number of exchange.dtype = {}", type);
  }
  return what;
}

bool MayLeaveOut(Job* job, const std::string& what, std::optional<WorkerId> found_by) {
  const std::string found = found_by ? fmt::format(", as worker {} says", *found_by) : "";
  if (job->start.config.job.on_nan == "stop") {
    job->Fail(fmt::format("{} (job.on_nan = stop){}", what, found));
    return false;
  }
  job->Log(LogLevel::kWarning, "{}{}: it is left out, and its samples are dropped", what, found);
  return true;
}

}  // namespace lockstep::coordinator
