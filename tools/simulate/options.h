// The command line of lockstep-simulate.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/job_config.h"
#include "base/job_options.h"
#include "base/result.h"
#include "base/slowdown_spec.h"
#include "tools/simulate/compute_model.h"
#include "tools/simulate/data_network.h"
#include "tools/simulate/fault.h"

namespace lockstep::simulate {

// Up to so many workers every message is carried, unless --exchange is given.
inline constexpr std::uint32_t kFullWorkers = 64;

struct SlowLink {
  std::uint32_t worker = 0;
  double bytes_per_second = 0;
};

struct SimulateOptions {
  // Options of a job.
  std::uint32_t workers = 0;
  std::string config_file;
  std::string run_dir;
  std::vector<SlowdownSpec> slowdowns;
  std::uint64_t seed = 0;
  std::vector<Setting> settings;  // from --set
  JobConfig job;
  std::string exchange = "auto";
  UnitTimeOptions unit;
  std::string unit_costs;    // a file; what it says is in `unit`
  bool knows_costs = false;  // programs tell what samples cost
  NetworkOptions network;
  Duration coordinator_cost = std::chrono::microseconds(5);
  std::uint64_t model_bytes = 4u << 20;
  std::uint64_t train_samples = 0;
  // Measured latencies that replace those of the modelled exchange: until a sealed part is
  // delivered, and from a commit until the worker begins with the next round. They depend on the
  // worker and the time since the job's start.
  std::function<Duration(WorkerId, Duration)> delivery;
  std::function<Duration(WorkerId, Duration)> begin;

  // Other modes: --exchange-times, --faults, --replay.
  bool exchange_times = false;
  bool faults = false;
  bool own_parameters = false;
  std::uint64_t first_seed = 1;
  std::uint64_t last_seed = 100;
  std::uint32_t jobs = 1;
  bool shrink = false;
  bool history = false;
  bool branches = false;
  std::vector<Fault> fault_list;
  bool fault_list_given = false;
  std::string replay;
  // The original config of the replayed run, from which `job` may differ; the same as `job` where
  // the run's directory has none.
  JobConfig job_of_run;
  // policy.plugin of the replayed run's config, where no option names one: it is not loaded, and
  // job.policy.plugin is empty.
  std::string plugin_of_run;

  bool policy_given = false;
  std::string print;  // not empty: --help or --version; nothing else is filled in

  // The meaning of `exchange` for this job.
  bool full() const {
    return exchange == "full" || (exchange == "auto" && workers <= kFullWorkers);
  }
};

// `arguments` without the program's name. Errors are kInvalid with one line.
Result<SimulateOptions> ParseSimulateOptions(std::span<const std::string> arguments);

}  // namespace lockstep::simulate
