#include "tools/simulate/job.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <memory>
#include <optional>

#include "base/check.h"
#include "coordinator/record/run_directory.h"
#include "coordinator/record/timeline.h"
#include "coordinator/record/write_json.h"
#include "coordinator/shell/policy_loader.h"
#include "tools/simulate/checker.h"
#include "tools/simulate/modelled_worker.h"
#include "tools/simulate/step_worker.h"

namespace lockstep::simulate {
namespace {

// After so many time-outs without a closed round, the job stands still.
constexpr int kStandstillTimeouts = 100;

worker::MachineConfig MachineOf(const SimulateOptions& options) {
  const JobConfig& job = options.job;
  worker::MachineConfig machine;
  machine.clip = job.optimizer.clip;
  machine.piece_bytes = job.exchange.piece_bytes;
  machine.fetch_window = job.exchange.window;
  machine.formation_timeout = FromSeconds(job.liveness.timeout_s);
  machine.peer_silence = worker::TimeoutsFrom(FromSeconds(job.liveness.timeout_s)).silence;
  machine.finish_timeout = FromSeconds(job.liveness.timeout_s);
  machine.queue_capacity = worker::kMostUnits;
  return machine;
}

// The parameters are one block that the backward pass finishes in a few steps. Where matrices are
// exchanged as factors, they are one matrix of as many columns as a square bucket has, cut into
// buckets.
worker::Layout LayoutOf(const SimulateOptions& options) {
  const std::uint64_t floats = std::max<std::uint64_t>(options.model_bytes / sizeof(float), 1);
  const ExchangeSection& exchange = options.job.exchange;
  worker::Compression compression{.kept = exchange.kept(), .rank = exchange.rank()};
  if (exchange.rank() > 0) {
    const std::uint64_t bucket = std::min(floats, exchange.bucket_bytes / sizeof(float));
    const auto side = static_cast<std::uint64_t>(std::sqrt(static_cast<double>(bucket)));
    compression.matrices.push_back({0, floats / side, side});
  }
  return worker::Layout({{0, floats}}, exchange.bucket_bytes, exchange.number_bytes(),
                        worker::Layout::Copies::kBuckets, compression);
}

std::shared_ptr<KnownCosts> CostsOf(const SimulateOptions& options) {
  if (!options.knows_costs) return nullptr;
  const auto cost = [costs = *options.unit.costs](Epoch epoch, std::uint64_t position) {
    return costs.SecondsOf(epoch, {position, position + 1});
  };
  return std::make_shared<KnownCosts>(options.train_samples, cost);
}

// It is for policies that choose by it; other jobs are unchanged.
double MeasuredGb(const SimulateOptions& options) {
  return options.job.exchange.algorithm == "auto" ? options.network.bytes_per_second / 1e9 : 0;
}

class JobRun {
 public:
  JobRun(const SimulateOptions& options, ComputeModel* compute, const OnRound& on_round)
      : options_(options),
        on_round_(on_round),
        network_(options.network, options.workers),
        simulation_(StartOf(options), options.seed,
                    ControlTiming{.latency = options.network.latency,
                                  .jitter = {},
                                  .coordinator_cost = options.coordinator_cost},
                    [this](WorkerHost* host) { return Make(host); }) {
    if (options.full()) {
      Cluster::Options cluster;
      cluster.machine = MachineOf(options);
      cluster.machine.shards = options.job.optimizer.Shards(options.workers);
      cluster.train_samples = options.train_samples;
      cluster.whole_checkpoints = false;
      cluster.costs = CostsOf(options);
      cluster.measured_gb_per_second = MeasuredGb(options);
      cluster_.emplace(std::move(cluster), LayoutOf(options), &network_, compute,
                       [number = options.job.exchange.number_bytes()](const MemberId&) {
                         return std::make_shared<NoNumbers>(number);
                       });
      checker_.emplace(Checker::Options{options.train_samples, StartOf(options).config},
                       &simulation_);
    } else {
      ModelledExchange::Options exchange;
      exchange.network = options.network;
      exchange.model_bytes = options.model_bytes;
      exchange.number_bytes = options.job.exchange.number_bytes();
      exchange.kept = options.job.exchange.kept();
      if (options.job.exchange.rank() > 0) {
        exchange.factor_bytes = LayoutOf(options).contribution_numbers() * exchange.number_bytes;
      }
      exchange.train_samples = options.train_samples;
      exchange.measured_gb_per_second = MeasuredGb(options);
      exchange.machine = MachineOf(options);
      exchange.delivery = options.delivery;
      exchange.apply = options.begin;
      exchange.costs = CostsOf(options);
      exchange_.emplace(std::move(exchange), compute, options.workers);
    }
    Attach();
    for (std::uint32_t i = 0; i < options.workers; ++i) simulation_.AddWorker(Duration{});
  }

  Result<JobOutcome> Go() {
    const Time began = MonotonicNow();
    const JobSection& job = options_.job.job;
    const double waits = std::max(2 * job.join_timeout_s, job.quorum_timeout_s);
    // The job ends by itself when its own waits are over.
    const Duration patience =
        FromSeconds(waits) + kStandstillTimeouts * FromSeconds(options_.job.liveness.timeout_s);
    last_round_ = simulation_.now();
    while (simulation_.RunNext()) {
      if (!status_.ok()) return status_.error();
      if (checker_ && !checker_->failure().empty()) {
        return Error{ErrorCode::kClosed, "an invariant is broken: " + checker_->failure()};
      }
      if (simulation_.now() - last_round_ > patience) {
        return Error{ErrorCode::kTimeout,
                     fmt::format("the job stands still: {}",
                                 simulation_.coordinator().Status(simulation_.now()).waiting_for)};
      }
    }
    LOCKSTEP_CHECK(simulation_.result() != nullptr, "nothing happens any more");
    JobOutcome outcome;
    outcome.result = *simulation_.result();
    outcome.result.simulated =
        coordinator::SimulatedRecord{options_.full() ? "full" : "modelled", options_.seed};
    // Nothing was learned, and with a thousand workers there are a million paths.
    outcome.result.train_loss.reset();
    outcome.result.params_digest.clear();
    outcome.result.digest_differs.clear();
    outcome.result.paths.clear();
    outcome.events = simulation_.queue().run();
    outcome.coordinator_steps = simulation_.coordinator_steps();
    outcome.coordinator_seconds = Seconds(simulation_.coordinator_time());
    outcome.seconds = Seconds(MonotonicNow() - began);
    return outcome;
  }

 private:
  static coordinator::StartParameters StartOf(const SimulateOptions& options) {
    coordinator::StartParameters start;
    start.config = options.job;
    start.config.data.digest.clear();  // there are no data
    start.plugin = coordinator::LoadPolicy;
    start.config.exchange.mapping = "auto";  // for the modelled exchange; full has no arenas
    start.config.exchange.transport = "tcp";
    start.workers = options.workers;
    start.job_id = "simulated";
    return start;
  }

  std::unique_ptr<WorkerModel> Make(WorkerHost* host) {
    if (cluster_) return std::make_unique<StepWorker>(host, &*cluster_);
    return std::make_unique<ModelledWorker>(host, &*exchange_);
  }

  void Attach() {
    Simulation::Hooks& hooks = simulation_.hooks;
    hooks.on_closed = [this](const std::shared_ptr<const coordinator::RoundRecord>& record) {
      last_round_ = simulation_.now();
      if (checker_) checker_->OnClosed(*record);
      if (status_.ok()) status_ = on_round_(*record);
    };
    if (!checker_) return;
    hooks.on_event = [this](const coordinator::Event& event) { checker_->OnEvent(event); };
    hooks.on_send = [this](const coordinator::Send& send) { checker_->OnSend(send); };
    hooks.on_close = [this](const coordinator::Close& close) { checker_->OnClose(close); };
    hooks.after_step = [this] { checker_->AfterStep(); };
  }

  const SimulateOptions& options_;
  const OnRound& on_round_;
  ModelNetwork network_;
  std::optional<Cluster> cluster_;
  std::optional<ModelledExchange> exchange_;
  Simulation simulation_;
  std::optional<Checker> checker_;
  Status status_;
  Time last_round_;
};

}  // namespace

Status CheckStart(const SimulateOptions& options) {
  coordinator::StartParameters start;
  start.config = options.job;
  start.plugin = coordinator::LoadPolicy;
  start.workers = options.workers;
  auto trial = coordinator::Coordinator::Make(std::move(start));
  return trial.ok() ? Status() : Status(trial.error());
}

Result<JobOutcome> SimulateJob(const SimulateOptions& options, ComputeModel* compute,
                               const OnRound& on_round) {
  if (Status status = CheckStart(options); !status) return status.error();
  return JobRun(options, compute, on_round).Go();
}

Result<JobOutcome> SimulateIntoRunDirectory(const SimulateOptions& options) {
  if (Status status = CheckStart(options); !status) return status.error();
  auto opened = coordinator::RunDirectory::Open(options.run_dir, false);
  if (!opened) return opened.error();
  coordinator::RunDirectory& directory = **opened;
  if (Status written = directory.WriteFile("config.ini", ToIni(options.job)); !written) {
    return written.error();
  }
  const auto timeline_path = directory.path() / "timeline.json";
  std::ofstream timeline_file(timeline_path, std::ios::trunc);
  Result<JobOutcome> outcome = [&] {
    coordinator::TimelineWriter timeline(timeline_file);
    ModelCompute compute(options.unit, options.seed, Simulation::kStart, options.workers);
    return SimulateJob(options, &compute, [&](const coordinator::RoundRecord& record) {
      timeline.Add(record);
      return directory.AppendRound(coordinator::RoundLine(record));
    });
  }();
  if (!outcome) return outcome.error();
  timeline_file.close();
  if (!timeline_file) {
    return Error{ErrorCode::kIo, fmt::format("{}: cannot write", timeline_path.string())};
  }
  if (Status written =
          directory.WriteFile("summary.json", coordinator::SummaryText(outcome->result));
      !written) {
    return written.error();
  }
  return outcome;
}

}  // namespace lockstep::simulate
