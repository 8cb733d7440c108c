// lockstep-bench: measures parts of Lockstep on this machine.

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "base/free_memory.h"
#include "base/log.h"
#include "tools/bench/coordinator_bench.h"
#include "tools/bench/exchange_bench.h"
#include "tools/bench/exchange_worker.h"
#include "tools/bench/limits_bench.h"
#include "tools/bench/options.h"
#include "tools/bench/process.h"
#include "tools/bench/tune_bench.h"
#include "tools/bench/tune_worker.h"

namespace lockstep::bench {
namespace {

constexpr int kStatusFailed = 1;
constexpr int kStatusUsage = 2;
constexpr int kStatusInterrupted = 130;

int Fail(const Error& error) {
  std::fprintf(stderr, "lockstep-bench: %s\n", error.message.c_str());
  if (IsInterrupted(error)) return kStatusInterrupted;
  switch (error.code) {
    case ErrorCode::kClosed:
    case ErrorCode::kRefused:
    case ErrorCode::kTimeout:
    case ErrorCode::kIo:
      return kStatusFailed;
    default:
      return kStatusUsage;
  }
}

int MainOfWorker(const std::vector<std::string>& arguments) {
  InitLogging("worker", "warn");
  ExchangeWorkerOptions options;
  options.coordinator = arguments[1];
  options.parameters = std::strtoull(arguments[2].c_str(), nullptr, 10);
  options.samples = std::strtoull(arguments[3].c_str(), nullptr, 10);
  options.meeting = arguments[4];
  options.device = arguments[5];
  options.report = arguments[6];
  options.idle = Duration(std::strtoll(arguments[7].c_str(), nullptr, 10));
  const Status ran = RunExchangeWorker(options);
  return ran.ok() ? 0 : Fail(ran.error());
}

int Main(const std::vector<std::string>& arguments) {
  if (arguments.size() == 8 && arguments[0] == kExchangeWorkerCommand &&
      !arguments[1].starts_with("--")) {
    return MainOfWorker(arguments);
  }
  auto options = ParseBenchOptions(arguments);
  if (!options) return Fail(options.error());
  if (options->kind == BenchOptions::Kind::kPrint) {
    std::fputs(options->print.c_str(), stdout);
    return 0;
  }
  if (options->kind == BenchOptions::Kind::kTuneWorker) InitLogging("worker", "warn");
  Signals signals;
  const Status ran = [&] {
    switch (options->kind) {
      case BenchOptions::Kind::kExchange:
        return RunExchangeBench(options->exchange, signals);
      case BenchOptions::Kind::kLimits:
        return RunLimitsBench(options->limits, signals);
      case BenchOptions::Kind::kTune:
        return RunTuneBench(options->tune, signals);
      case BenchOptions::Kind::kTuneWorker:
        return RunTuneWorker(options->tune_worker, signals);
      default:
        return RunCoordinatorBench(options->coordinator, signals);
    }
  }();
  if (ran.ok()) return 0;
  const int status = Fail(ran.error());
  const bool away =
      ran.error().code == ErrorCode::kUnavailable || ran.error().code == ErrorCode::kTimeout;
  return options->kind == BenchOptions::Kind::kTuneWorker && away ? kStatusNoCoordinator : status;
}

}  // namespace
}  // namespace lockstep::bench

int main(int argc, char** argv) {
  lockstep::EndWhenOutOfResources("lockstep-bench");
  return lockstep::bench::Main(std::vector<std::string>(argv + 1, argv + argc));
}
