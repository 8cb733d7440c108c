// The workers of a tuning: each job's config tells its workers what to sum.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "base/result.h"
#include "tools/bench/options.h"
#include "tools/bench/process.h"

namespace lockstep::bench {

// The task of such a job. It travels as the config's data.path, which each worker may read in its
// own way.
struct TunedJob {
  std::uint64_t parameters = 0;
  std::uint64_t samples = 0;
  // Variables of the workers, for UCX; the names are some of kTunedEnvironment.
  std::map<std::string, std::string> environment;
  bool operator==(const TunedJob&) const = default;
};
inline constexpr const char* kTunedEnvironment[] = {"UCX_TCP_RX_SEG_SIZE", "UCX_TCP_TX_SEG_SIZE"};

std::string ToText(const TunedJob& job);
// Returns an error for any other text.
Result<TunedJob> ParseTunedJob(const std::string& text);

// Runs one job after the other, each in a process of its own, until the coordinator is gone. With
// `once` it runs one job, in this process.
Status RunTuneWorker(const TuneWorkerOptions& options, Signals& signals);

}  // namespace lockstep::bench
