// lockstep-simulate: runs jobs on virtual time.

#include <fmt/format.h>

#include <cstdio>
#include <string>
#include <vector>

#include "base/free_memory.h"
#include "base/routes.h"
#include "tools/simulate/exchange_times.h"
#include "tools/simulate/fault_runs.h"
#include "tools/simulate/job.h"
#include "tools/simulate/options.h"
#include "tools/simulate/replay.h"

namespace lockstep::simulate {
namespace {

constexpr int kStatusFailed = 1;
constexpr int kStatusUsage = 2;
constexpr int kStatusInterrupted = 130;

int Fail(const Error& error) {
  std::fprintf(stderr, "lockstep-simulate: %s\n", error.message.c_str());
  switch (error.code) {
    case ErrorCode::kClosed:
    case ErrorCode::kTimeout:
    case ErrorCode::kIo:
      return kStatusFailed;
    default:
      return kStatusUsage;
  }
}

int RunJob(const SimulateOptions& options) {
  auto outcome = SimulateIntoRunDirectory(options);
  if (!outcome) return Fail(outcome.error());
  const coordinator::JobResult& result = outcome->result;
  const double rounds = static_cast<double>(std::max<std::uint64_t>(result.totals.rounds, 1));
  const double steps = static_cast<double>(std::max<std::uint64_t>(outcome->coordinator_steps, 1));
  fmt::print(
      "{}: {} rounds, {} epochs in {:.3f} s of virtual time ({:.3f} ms a round), policy {}, "
      "{} samples requeued, {} moved{}\n",
      Name(result.outcome), result.totals.rounds, result.totals.epochs, result.wall_seconds,
      1e3 * result.wall_seconds / rounds, result.policy, result.totals.samples_requeued,
      result.totals.samples_moved,
      result.reason.empty() ? "" : fmt::format(" ({})", result.reason));
  fmt::print(
      "it took {:.2f} s for {} events; the coordinator {:.2f} us for an event, {:.3f} ms for "
      "a round\n",
      outcome->seconds, outcome->events, 1e6 * outcome->coordinator_seconds / steps,
      1e3 * outcome->coordinator_seconds / rounds);
  return result.outcome == coordinator::JobOutcome::kCompleted ? 0 : kStatusFailed;
}

int PrintExchangeTimes(const SimulateOptions& options) {
  std::string text;
  for (const auto algorithm :
       {ExchangeAlgorithm::kDirect, ExchangeAlgorithm::kRing, ExchangeAlgorithm::kTree}) {
    const ExchangeTimes times =
        TimesOf({.algorithm = algorithm,
                 .workers = options.workers,
                 .bytes = options.model_bytes * options.job.exchange.number_bytes() / 4,
                 .piece_bytes = options.job.exchange.piece_bytes},
                options.network);
    text += fmt::format("{}\"{}\": {:.1f}", text.empty() ? "{" : ", ", AlgorithmName(algorithm),
                        1e6 * Seconds(times.all()));
  }
  fmt::print("{}}}\n", text);
  return 0;
}

int RunReplay(const SimulateOptions& options) {
  auto table = Replay(options);
  if (!table) return Fail(table.error());
  std::fputs(table->c_str(), stdout);
  return 0;
}

int Main(const std::vector<std::string>& arguments) {
  auto options = ParseSimulateOptions(arguments);
  if (!options) return Fail(options.error());
  if (!options->print.empty()) {
    std::fputs(options->print.c_str(), stdout);
    return 0;
  }
  if (options->exchange_times) return PrintExchangeTimes(*options);
  if (!options->replay.empty()) return RunReplay(*options);
  if (options->faults) {
    if (const Status jobs = CheckFaultJobs(*options); !jobs) return Fail(jobs.error());
    const SeedsEnd end = RunFaultSeeds(*options);
    if (end == SeedsEnd::kInterrupted) return kStatusInterrupted;
    return end == SeedsEnd::kAllPassed ? 0 : kStatusFailed;
  }
  return RunJob(*options);
}

}  // namespace
}  // namespace lockstep::simulate

int main(int argc, char** argv) {
  lockstep::EndWhenOutOfResources("lockstep-simulate");
  return lockstep::simulate::Main(std::vector<std::string>(argv + 1, argv + argc));
}
