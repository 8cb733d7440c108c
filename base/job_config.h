// The job's configuration, typed. One declaration of each option (base/job_options.cc) serves the
// INI file, the command line,
// --help and docs/reference/configuration.md.
#pragma once

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/sparse_block.h"
#include "base/time.h"

namespace lockstep {

struct JobSection {
  std::uint64_t seed = 1;
  std::uint32_t epochs = 0;  // one of epochs and rounds ends the job; with neither: 1 epoch
  std::uint64_t rounds = 0;
  std::uint32_t global_batch = 256;  // samples in a round
  std::uint32_t units = 0;           // units in a round; 0: auto
  std::uint32_t min_workers = 0;     // 0: as policies::DefaultMinWorkers says
  std::uint32_t max_workers = 0;     // above --workers: more may join; 0: --workers
  std::uint32_t spares = 0;          // live workers without units until others are lost
  double join_timeout_s = 60;        // how long to wait for --workers to join
  double quorum_timeout_s = 1800;    // time without min_workers, once rounds have begun; 0: for
                                     // ever
  // How long a worker that has lost its coordinator keeps its state and looks for another one.
  // kThreeTimeouts: three times liveness.timeout; 0: it ends at once.
  static constexpr double kThreeTimeouts = -1;
  double coordinator_timeout_s = kThreeTimeouts;
  // stop | skip: the reaction to a contribution with values that are not finite. Stop ends the job;
  // skip drops the contribution and its samples.
  std::string on_nan = "stop";
};

struct ModelSection {
  std::string name = "mlp";
  std::vector<std::uint32_t> widths = {256, 128};
  double dropout = 0;
  std::string normalization = "none";
};

struct DataSection {
  std::string format = "idx";
  std::string path;
  std::string digest;  // that the data of all workers must have; empty: that of the majority
  std::uint32_t synthetic_train = 8192;
  std::uint32_t synthetic_test = 2048;
  std::uint32_t synthetic_features = 64;
  std::uint32_t synthetic_classes = 10;
  std::string augment = "none";  // none | shift | shift-flip
};

struct ComputeSection {
  std::string precision = "fp32";  // fp32 | tf32 | bf16: factors of matrix products on a GPU
};

struct OptimizerSection {
  std::string name = "sgd";
  double lr = 0.1;
  double momentum = 0.9;
  bool nesterov = false;
  double weight_decay = 0;
  double clip = 0;        // global norm of the mean gradient; 0: none
  double decay = 0.9;     // rmsprop
  double epsilon = 1e-8;  // rmsprop, adamw (Chen et al. use 1.0 for rmsprop)
  double beta1 = 0.9;
  double beta2 = 0.999;
  bool linear_scaling = true;     // lr times samples included / global_batch
  std::uint32_t replicas = kAll;  // workers that hold each part of the optimizer's state

  static constexpr std::uint32_t kAll = 0xffffffff;
  // The number of shards into which a job of so many workers cuts the state; 0: every worker holds
  // all of it.
  std::uint32_t Shards(std::uint32_t workers) const { return replicas < workers ? workers : 0; }
  // The training program makes the update; the session makes those of sgd, rmsprop and adamw.
  bool custom() const { return name == "custom"; }
};

struct ScheduleSection {
  std::string name = "constant";  // constant | step | exponential | cosine
  double warmup = 0;              // updates
  double step_every = 0;          // `step`: updates between steps; `exponential`: for one factor
  double factor = 0.1;            // for `step` and `exponential`
  double final_lr = 0;            // for `cosine`
};

struct PolicySection {
  static constexpr std::uint32_t kAuto = 0xffffffff;

  std::string name = "full";
  std::string plugin = {};           // path of a shared library, for the name `plugin`
  std::uint32_t backup_workers = 1;  // backup.workers; kAuto: chosen anew in the course of the job
  double deadline_k = 4;
  std::uint32_t deadline_min_contributors = 0;  // 0: half of --workers
  std::uint32_t deadline_window = 20;
  double partial_k = 4;
  std::uint32_t partial_min_contributors = 0;  // 0: half of --workers
  std::uint32_t partial_window = 20;
  double flexrr_trigger = 0.2;
  double flexrr_first = 0.025;
  std::uint32_t flexrr_group_size = 0;  // 0: all
  double balance_hysteresis = 0.05;
  std::uint32_t async_staleness = kAuto;  // kAuto: 4 * --workers
  bool async_damping = true;
  std::uint32_t local_steps = 8;
  double local_rate = 1;      // of the average: 1 takes it unchanged
  double local_momentum = 0;  // of the average

  bool local() const { return name == "local" || name.starts_with("local+"); }
};

struct ExchangeSection {
  std::string transport = "auto";  // auto | ucx | tcp
  std::string encryption = "off";  // off | on
  std::uint32_t connections = 1;   // of tcp, to each peer
  std::string mapping = "auto";    // auto | off
  std::string memory = "auto";     // auto | host
  std::string algorithm = "direct";
  std::string dtype = "fp32";        // fp32 | bf16 | fp16
  std::string rounding = "nearest";  // nearest | stochastic
  std::string compression = "none";  // none | topk | powersgd
  double topk_fraction = 0.01;
  std::uint32_t powersgd_rank = 8;
  std::uint64_t bucket_bytes = 4u << 20;
  std::uint64_t piece_bytes = 1u << 20;
  std::uint32_t window = 8;   // pieces under way from one peer
  std::uint32_t threads = 0;  // 0: auto

  // Bytes of one number of a contribution or a sum, in memory and on the wire.
  std::uint64_t number_bytes() const { return dtype == "fp32" ? 4 : 2; }
  // A contribution has only some of a gradient's numbers.
  bool compressed() const { return compression != "none"; }
  // The rank of the factors that are sent for a matrix; 0: its numbers are sent.
  std::uint32_t rank() const { return compression == "powersgd" ? powersgd_rank : 0; }
  // How many numbers of each block of a contribution are sent; 0: all.
  std::uint32_t kept() const {
    if (compression != "topk") return 0;
    return static_cast<std::uint32_t>(std::ceil(topk_fraction * static_cast<double>(kSparseBlock)));
  }
};

struct EmulateSection {
  double unit_time_s = 0;  // floor of time for each unit
};

struct LivenessSection {
  double timeout_s = 10;
};

struct EvaluationSection {
  std::uint32_t every_epochs = 1;  // 0: only at the end
  std::uint64_t every_rounds = 0;
};

struct CheckpointSection {
  std::uint64_t every_rounds = 0;
  std::uint32_t every_epochs = 1;  // 0: only at the end
  double every_s = 600;            // 0: not by time
  std::uint32_t keep = 2;          // how many of the newest stay
  bool rescue = true;              // by the workers, when no coordinator takes over
  bool residuals = false;          // what compression keeps back is saved beside each checkpoint
};

struct JournalSection {
  bool sync = false;  // sync each entry to the disk before its commit is sent
};

struct AuditSection {
  double share = 0;         // of the units that a second worker computes too; 0: none
  double tolerance = 1e-3;  // between workers that compute in unlike ways
};

struct JobConfig {
  JobSection job;
  ModelSection model;
  DataSection data;
  ComputeSection compute;
  OptimizerSection optimizer;
  ScheduleSection schedule;
  PolicySection policy;
  ExchangeSection exchange;
  EmulateSection emulate;
  LivenessSection liveness;
  EvaluationSection evaluation;
  CheckpointSection checkpoint;
  JournalSection journal;
  AuditSection audit;
};

}  // namespace lockstep
