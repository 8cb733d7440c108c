#include "worker/runtime/session_parts.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <cstdlib>
#include <string>
#include <utility>

#include "base/check.h"
#include "base/compatibility.h"
#include "base/processors.h"
#include "transport/open_files.h"
#include "transport/paths/judge.h"
#include "worker/optimizer/grouped.h"
#include "worker/runtime/join.h"

namespace lockstep::worker {
namespace {

// Besides the connections to other workers: 128 of strangers, and what the program has open.
constexpr std::uint64_t kOtherFiles = 256;

// The job's own rules have groups; where the program makes the updates they are its own affair.
void NoteGroups(bool custom, JobDescription& description) {
  if (custom) description.groups.clear();
  if (description.groups.empty()) return;
  description.dataset_digest += "; " + DigestOfGroups(description.groups);
}

Traits TraitsOf(const JobConfig& config, std::uint32_t workers, const std::string& device,
                const JobDescription& description) {
  return {.policy = NamedPolicy(config.policy),
          .workers = workers,
          .device = description.collect || description.memory ? device : std::string(),
          .device_memory = description.memory != nullptr,
          .shapes = !description.tensors.empty(),
          .averages = description.averages};
}

Status MakeOptimizers(const JobConfig& config, std::uint32_t workers, SessionParts& parts) {
  const JobDescription& description = parts.description;
  if (config.policy.local()) {
    auto steps = LocalSteps::Make(config, workers, description.parameter_count, description.groups);
    if (!steps) return steps.error();
    parts.local_steps = std::make_shared<LocalSteps>(std::move(*steps));
  }
  if (config.optimizer.custom() && description.update_state_tensors) {
    parts.optimizer = MakeCustomOptimizer(*description.update_state_tensors);
  } else {
    auto optimizer = parts.local_steps ? MakeOptimizer(OuterOptimizer(config))
                                       : MakeOptimizer(config.optimizer, description.groups);
    if (!optimizer) return optimizer.error();
    parts.optimizer = std::move(*optimizer);
  }
  if (config.exchange.rank() > 0) parts.optimizer = WithFactors(std::move(parts.optimizer));
  return CheckNames(description.tensors, parts.optimizer->state_names());
}

void TellFactors(const Layout& layout) {
  std::uint64_t factored = 0;
  for (std::uint32_t b = 0; b < layout.bucket_count(); ++b) {
    for (const Stretch& stretch : layout.stretches(b)) {
      factored += stretch.dense() ? 0 : stretch.count;
    }
  }
  const auto share = [&](std::uint64_t numbers) {
    return 100.0 * static_cast<double>(numbers) / static_cast<double>(layout.parameter_count());
  };
  if (factored == 0) {
    spdlog::warn(
        "exchange.compression = powersgd: no matrix has {} rows and columns, so all numbers of a "
        "gradient are exchanged; take a smaller exchange.powersgd_rank, or none",
        2 * layout.rank());
    return;
  }
  spdlog::info(
      "{:.1f} % of the gradient go as factors of rank {}: a contribution has {:.1f} % of its "
      "numbers",
      share(factored), layout.rank(), share(layout.contribution_numbers()));
}

void MakeBuckets(const JobConfig& config, SessionParts& parts) {
  const JobDescription& description = parts.description;
  const bool factors = config.exchange.rank() > 0;
  parts.buckets.emplace(
      description.blocks, description.finish_order, config.exchange.bucket_bytes,
      config.exchange.number_bytes(),
      config.optimizer.custom() ? Layout::Copies::kWhole : Layout::Copies::kBuckets,
      Compression{.kept = config.exchange.kept(),
                  .rank = config.exchange.rank(),
                  .matrices = factors ? MatricesOf(description.tensors) : std::vector<Matrix>()});
  if (factors) TellFactors(parts.layout());
  LOCKSTEP_CHECK(parts.layout().parameter_count() == description.parameter_count,
                 "blocks of {} parameters in a model of {}", parts.layout().parameter_count(),
                 description.parameter_count);
}

Status MakeBuffers(const JobConfig& config, std::uint32_t workers, SessionParts& parts) {
  const std::uint32_t shards = config.optimizer.Shards(workers);
  const bool mapping = config.exchange.mapping == "auto";
  if (!mapping) parts.no_arena = "exchange.mapping is off";
  const auto memory = std::move(parts.description.memory);
  // A device's memory is taken a buffer at a time, so there nothing is saved.
  parts.sums_apart = memory == nullptr && shards == 0 && config.exchange.algorithm == "direct";
  const auto shared_out = shards > 0         ? WorkerBuffers::Parts::kSumsAndState
                          : parts.sums_apart ? WorkerBuffers::Parts::kSums
                                             : WorkerBuffers::Parts::kNone;
  const auto make = [&](bool arena) {
    return WorkerBuffers::Make(parts.layout(), parts.state_tensors(), arena, memory,
                               NumberTypeOf(config.exchange.dtype), shared_out, shards);
  };
  auto buffers = make(mapping);
  if (!buffers && mapping) {
    parts.no_arena = buffers.error().message;
    spdlog::warn("no mapping for peers on this host: {}", parts.no_arena);
    buffers = make(false);
  }
  if (!buffers) return buffers.error();
  parts.buffers = std::move(*buffers);
  return {};
}

}  // namespace

Result<std::unique_ptr<SessionParts>> MakeParts(const JobConfig& config, std::uint32_t workers,
                                                const std::string& device,
                                                JobDescription description) {
  auto parts = std::make_unique<SessionParts>();
  parts->description = std::move(description);
  NoteGroups(config.optimizer.custom(), parts->description);
  if (Status can_be = CheckDescription(parts->description, config.optimizer.custom()); !can_be) {
    return can_be.error();
  }
  const Traits traits = TraitsOf(config, workers, device, parts->description);
  if (Status fits = CheckTogether(config, traits); !fits) return fits.error();
  if (Status made = MakeOptimizers(config, workers, *parts); !made) return made.error();
  MakeBuckets(config, *parts);
  if (Status made = MakeBuffers(config, workers, *parts); !made) return made.error();
  return parts;
}

DataPlane::Setup SetupOf(const JobConfig& config, const msg::Welcome& welcome,
                         const SessionOptions& options, const SessionParts& parts) {
  DataPlane::Setup setup;
  setup.core.self = welcome.self;
  setup.core.term = welcome.term;
  setup.core.host_id = HostId();
  setup.core.mapping = parts.buffers->arena() != nullptr;
  setup.no_arena = parts.no_arena;
  setup.core.state_tensors = parts.state_tensors();
  setup.core.shards = config.optimizer.Shards(welcome.workers);
  setup.core.sums_apart = parts.sums_apart;
  setup.core.clip = parts.local_steps ? 0 : config.optimizer.clip;
  setup.core.piece_bytes = config.exchange.piece_bytes;
  setup.core.fetch_window = config.exchange.window;
  setup.core.queue_capacity = kMostUnits;
  setup.core.epoch_ends = parts.description.epoch_ends;
  setup.core.takes_costs = welcome.takes_costs;
  setup.core.run_bound = parts.description.run_bound;
  setup.core.most_run_cost = parts.description.max_run_cost;
  setup.core.train_samples = parts.description.train_samples;
  setup.core.test_samples = parts.description.test_samples;
  setup.core.unit_samples = config.job.global_batch;
  setup.job_key = welcome.job_key;
  setup.encryption = config.exchange.encryption == "on";
  setup.seed = config.job.seed;
  if (config.exchange.rounding == "stochastic") setup.rounding_seed = config.job.seed;
  setup.connections = config.exchange.connections;
  setup.members = welcome.workers;
  setup.threads = {.configured = config.exchange.threads,
                   .environment = ThreadsOf(std::getenv("OMP_NUM_THREADS")),
                   .processors = UsableProcessors(),
                   .host_id = setup.core.host_id};
  setup.timeouts = TimeoutsFrom(FromSeconds(config.liveness.timeout_s));
  setup.core.formation_timeout = setup.timeouts.formation;
  setup.core.peer_silence = setup.timeouts.silence;
  setup.core.finish_timeout = FromSeconds(config.liveness.timeout_s);
  setup.paths = transport::paths::LookAround();
  setup.transports = transport::paths::Choose(config.exchange.transport, setup.paths.machine);
  setup.paths.gpu = options.device.starts_with("cuda");
  setup.paths.gpu_pci = options.gpu_pci;
  setup.paths.device_exchange = !parts.buffers->memory().on_host();
  setup.require_gpudirect = options.require_gpudirect;
  setup.initialize = parts.description.initialize;
  setup.round_times = options.on_round;
  return setup;
}

// Each peer may come back while its old connections are not given up yet.
void AllowOpenFiles(const JobConfig& config, std::uint32_t workers) {
  const std::uint64_t for_peers = (workers - std::uint64_t{1}) * config.exchange.connections;
  const auto allowed = transport::AllowOpenFiles(2 * for_peers + kOtherFiles);
  if (!allowed) {
    spdlog::warn("{}", allowed.error().message);
  } else if (*allowed < for_peers + kOtherFiles) {
    spdlog::warn(
        "{} connections to other workers and {} open files allowed: raise the hard limit "
        "(ulimit -Hn)",
        for_peers, *allowed);
  }
}

}  // namespace lockstep::worker
