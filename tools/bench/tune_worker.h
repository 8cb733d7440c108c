// The workers of a tuning: each job tells its workers by its config what to sum.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "base/result.h"
#include "tools/bench/options.h"
#include "tools/bench/process.h"

namespace lockstep::bench {

// What such a job is about. It travels as the config's data.path, which is a worker's own to read.
struct TunedJob {
  std::uint64_t parameters = 0;
  std::uint64_t samples = 0;
  // Of the workers, for UCX; the names are some of kTunedEnvironment.
  std::map<std::string, std::string> environment;
  bool operator==(const TunedJob&) const = default;
};
inline constexpr const char* kTunedEnvironment[] = {"UCX_TCP_RX_SEG_SIZE", "UCX_TCP_TX_SEG_SIZE"};

std::string ToText(const TunedJob& job);
// An error for whatever is not such a text.
Result<TunedJob> ParseTunedJob(const std::string& text);

// One job after the other, each in a process of its own, until the coordinator is not there any
// more. With `once`: one, in this process.
Status RunTuneWorker(const TuneWorkerOptions& options, Signals& signals);

}  // namespace lockstep::bench
