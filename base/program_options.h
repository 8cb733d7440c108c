// The command lines of the programs.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/host_port.h"
#include "base/job_config.h"
#include "base/job_options.h"
#include "base/options.h"
#include "base/result.h"
#include "base/slowdown_spec.h"

namespace lockstep {

// The version of the software: "0.1.0".
std::string Version();

// Option types that several programs share.
OptionType<HostPort> HostPortOption();
// It also reads a trace's file.
OptionType<SlowdownSpec> SlowdownOption();

// A key in etcd. The coordinator that holds it, with a lease, leads.
struct LeaseAddress {
  HostPort etcd;
  std::string name;  // of the key
  bool operator==(const LeaseAddress&) const = default;
};
Result<LeaseAddress> ParseLeaseAddress(std::string_view text);  // "etcd://HOST:2379/NAME"
std::string ToString(const LeaseAddress& lease);

struct CoordinatorOptions {
  HostPort listen{"127.0.0.1", 7070};
  std::uint32_t workers = 0;
  // With those that may join later.
  std::uint32_t slots() const { return std::max(workers, job.job.max_workers); }
  std::string config_file;
  std::string run_dir;
  std::optional<HostPort> http;
  bool resume = false;
  bool reattach = false;  // resume with the workers that are still there; without a job, start one
  // Follows the coordinator at `follow`, and leads once it has taken over.
  bool standby = false;
  HostPort follow;
  std::optional<LeaseAddress> lease;
  // Settings that are missing from the config file and the command line come from the training
  // programs.
  bool config_from_workers = false;
  // How long the first worker may take to come. Waiting loses nothing, and a program may take long
  // to start, so the default is above job.join_timeout. A given value holds.
  double settings_timeout_s = 600;
  std::string secret_file;
  std::string log_level = "info";
  // Config file and command line together, checked. With --resume and no --config the file is the
  // run directory's config.ini.
  JobConfig job;
  // Not empty: --help, --version or --check-slowdown; print it and end with status 0. No other
  // field is filled in then.
  std::string print;
};

struct WorkerOptions {
  HostPort coordinator;
  std::optional<WorkerId> wanted;  // --id: the slot to take
  std::string device = "cpu";
  bool require_gpudirect = false;  // with a GPU only
  std::vector<Setting> overrides;  // overrides of the job's config, for WorkerKeys()
  std::vector<SlowdownSpec> slowdowns;
  std::string secret_file;
  // The address to which peers connect; empty: the address by which this host reaches the
  // coordinator.
  std::string data_host;
  double connect_timeout_s = 60;
  std::string log_level = "info";
  std::string print;  // as above
};

// `arguments` without the program's name (see Arguments). Errors are kInvalid, one line; programs
// print it and end with status 2. `settings`: INI text from the workers, for --config-from-workers.
// null: not known yet, so settings that they may change are not checked.
Result<CoordinatorOptions> ParseCoordinatorOptions(std::span<const std::string> arguments,
                                                   const std::string* settings = nullptr);
Result<WorkerOptions> ParseWorkerOptions(std::span<const std::string> arguments);

}  // namespace lockstep
