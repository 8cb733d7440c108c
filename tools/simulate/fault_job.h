// One small job with real floats under faults. All of it follows from a seed, and the list of
// faults can be replaced to find the necessary ones.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/job_config.h"
#include "policies/registry.h"
#include "tools/simulate/fault.h"
#include "tools/simulate/real_numbers.h"
#include "tools/simulate/step_worker.h"

namespace lockstep::simulate {

struct FaultJob {
  std::uint64_t seed = 1;
  std::uint32_t workers = 4;
  std::uint32_t min_workers = 1;
  PolicySection policy;
  policies::PluginMaker plugin = nullptr;  // for the policy of that name
  ScheduleSection schedule;
  std::uint32_t replicas = OptimizerSection::kAll;  // optimizer.replicas
  std::string algorithm = "direct";                 // exchange.algorithm
  bool linear_scaling = true;
  std::uint32_t global_batch = 64;
  std::uint32_t epochs = 3;
  std::vector<worker::FloatRange> blocks;
  std::uint64_t bucket_bytes = 8192;
  // kWhole: as when the program makes the updates.
  worker::Layout::Copies copies = worker::Layout::Copies::kBuckets;
  std::uint32_t kept = 0;             // Layout::kept
  std::uint32_t rank = 0;             // Layout::rank
  std::uint64_t given_under_way = 0;  // StartParameters::given_under_way; 0: unchanged
  Cluster::Options cluster;
  Duration unit_time = std::chrono::microseconds(800);
  std::set<std::uint32_t> slow;  // workers
  double slow_factor = 6;
  // Samples of each epoch, by their place in it: their gradients are not numbers, and are skipped.
  std::vector<std::uint64_t> poisoned;
  double audit_share = 0;
  std::vector<Fault> faults;
  Duration faults_until{};  // from here on no fault occurs, and the job has to finish
  Duration patience = std::chrono::minutes(2);  // time limit after that
};

// The settings that a draw leaves to the caller.
inline constexpr std::uint32_t kMostDrawnWorkers = 6;

struct FaultDraw {
  std::uint64_t seed = 1;
  std::optional<std::uint32_t> workers;    // nullopt: 1 to kMostDrawnWorkers, as many as `policy`
                                           // needs
  std::optional<PolicySection> policy;     // nullopt: any pair of rules, or auto
  policies::PluginMaker plugin = nullptr;  // in place of the policy
  FaultMix mix;
  FaultMix more;  // drawn in addition
  std::uint32_t more_epochs = 0;
  bool whole_copies = false;  // FaultJob::copies
  // optimizer.replicas; where the state is sharded, settings that need it whole are left out.
  std::optional<std::uint32_t> replicas;
  std::uint32_t kept = 0;            // FaultJob::kept, unless the policy is async
  std::uint32_t rank = 0;            // likewise, in place of `kept`
  std::string algorithm = "direct";  // exchange.algorithm; one other than direct excludes settings
                                     // that need direct
  bool own_parameters = false;       // Cluster::Options::own_parameters
  bool absences = false;             // kAway beside the other faults
  bool stalls = false;               // FaultMix::stalls, beside the other faults
  bool takeovers = false;            // FaultMix::takeovers, beside the other faults
  bool files = false;                // FaultMix::files, beside the other faults
  double audit_share = 0;            // FaultJob::audit_share, where units can be audited
  bool poisoned = false;             // FaultJob::poisoned, where more than two workers send all
                                     // numbers
};
FaultJob DrawFaultJob(const FaultDraw& draw);

struct FaultOutcome {
  std::string failure;    // empty: no failure
  std::string details;    // with a failure: the waits of each worker, and the coordinator's log
  bool all_lost = false;  // the faults have left nobody who could go on; the job has failed rightly
  std::vector<Fault> to_come;  // faults whose moment never came
  Duration took{};             // of the job's time, until it had finished
  std::uint64_t rounds = 0;
  std::optional<coordinator::AuditRecord> audit;  // once it has ended
  std::uint64_t events = 0;
  std::uint64_t applied = 0;    // updates compared
  std::uint64_t caught_up = 0;  // copied states that were compared
  RealNumbers::Counts numbers;
  std::map<std::string, std::uint64_t> counts;  // messages and actions by name
};

// `history`: gets each message and fault in words, as it happens.
FaultOutcome RunFaultJob(const FaultJob& job,
                         const std::function<void(const std::string&)>& history = nullptr);

}  // namespace lockstep::simulate
