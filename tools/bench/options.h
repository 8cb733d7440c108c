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
  std::uint32_t rounds = 500;  // measured, of each kind
  std::uint32_t units = 1;     // of each worker in a round
  std::vector<Setting> settings;
  std::string json;  // empty: none; "-": standard output
};

struct ExchangeBenchOptions {
  std::uint32_t workers = 4;
  std::vector<std::uint32_t> bytes = {1048576, 104857600};
  std::uint32_t rounds = 30;  // measured
  std::string transport = "auto";
  std::string mapping = "auto";
  std::string device = "cpu";
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

// How the program starts itself as a worker; then coordinator, parameters, samples, meeting,
// device, report.
inline constexpr const char* kExchangeWorkerCommand = "exchange-worker";

struct BenchOptions {
  enum class Kind : std::uint8_t { kPrint, kCoordinator, kExchange, kLimits };
  Kind kind = Kind::kPrint;
  std::string print;  // --help or --version
  CoordinatorBenchOptions coordinator;
  ExchangeBenchOptions exchange;
  LimitsBenchOptions limits;
};

// `arguments` without the program's name. Errors are kInvalid, one line.
Result<BenchOptions> ParseBenchOptions(std::span<const std::string> arguments);

}  // namespace lockstep::bench
