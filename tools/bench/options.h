// The command line of lockstep-bench.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/job_options.h"
#include "base/result.h"

namespace lockstep::bench {

struct CoordinatorBenchOptions {
  std::vector<std::uint32_t> workers = {16, 128, 1000};
  std::uint32_t rounds = 500;  // measured rounds of each kind
  std::uint32_t units = 1;     // units of each worker in a round
  std::vector<Setting> settings;
  std::string json;  // empty: none; "-": standard output
};

struct ExchangeBenchOptions {
  std::uint32_t workers = 4;
  std::vector<std::uint32_t> bytes = {1048576, 104857600};
  std::uint32_t rounds = 30;  // measured rounds
  std::string transport = "auto";
  std::string mapping = "auto";
  std::string device = "cpu";
  double idle = 0;  // seconds of sleep of each worker before it seals
  std::string optimizer = "sgd";
  std::vector<Setting> settings;
  std::string json;  // as above
};

struct LimitsBenchOptions {
  std::uint32_t workers = 4;
  std::vector<std::uint32_t> bytes = {1048576, 104857600};
  std::uint32_t rounds = 20;
  std::string json;  // as above
};

struct TuneOptions {
  std::uint32_t workers = 2;
  std::vector<std::uint32_t> bytes = {1048576, 104857600};
  std::uint32_t rounds = 15;  // rounds of each job
  std::uint32_t pairs = 3;    // pairs of jobs for each value of a setting
  std::string transport = "auto";
  std::string mapping = "off";
  std::string device = "cpu";
  std::string listen;  // "10.0.0.1" or with a port; empty: all workers are on this machine
  std::string secret_file;
  std::uint32_t here = 1;  // number of this machine's workers, with `listen`
  std::vector<Setting> settings;
  std::string json;  // as above
};

struct TuneWorkerOptions {
  std::string coordinator;
  std::string secret_file;
  std::string data_host;
  std::string device = "cpu";
  bool once = false;
  std::string meeting;  // as ExchangeWorkerOptions::meeting
};

// The command with which the program starts itself as a worker. Its words are positional
// (coordinator, parameters, samples, meeting, device, report, nanoseconds of `idle`), or it has the
// options of TuneWorkerOptions.
inline constexpr const char* kExchangeWorkerCommand = "exchange-worker";
// Such a worker has not reached its coordinator.
inline constexpr int kStatusNoCoordinator = 3;

struct BenchOptions {
  enum class Kind : std::uint8_t { kPrint, kCoordinator, kExchange, kLimits, kTune, kTuneWorker };
  Kind kind = Kind::kPrint;
  std::string print;  // --help or --version
  CoordinatorBenchOptions coordinator;
  ExchangeBenchOptions exchange;
  LimitsBenchOptions limits;
  TuneOptions tune;
  TuneWorkerOptions tune_worker;
};

// `arguments` without the program's name. Errors are kInvalid with one line.
Result<BenchOptions> ParseBenchOptions(std::span<const std::string> arguments);

}  // namespace lockstep::bench
