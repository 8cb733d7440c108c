#include "worker/runtime/session.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <mutex>
#include <optional>
#include <set>
#include <utility>

#include "base/emulated_unit.h"
#include "base/ini.h"
#include "base/job_options.h"
#include "base/log.h"
#include "base/processors.h"
#include "base/program_options.h"
#include "transport/open_files.h"
#include "transport/paths/judge.h"
#include "worker/optimizer/grouped.h"
#include "worker/optimizer/optimizer.h"
#include "worker/runtime/contribution.h"
#include "worker/runtime/control_link.h"
#include "worker/runtime/coordinator_inbox.h"
#include "worker/runtime/data_plane.h"
#include "worker/runtime/final_buckets.h"
#include "worker/runtime/local_steps.h"
#include "worker/runtime/open_ports.h"
#include "worker/runtime/pacer.h"
#include "worker/runtime/run_samples.h"
#include "worker/runtime/run_watch.h"

namespace lockstep::worker {
namespace {

// Besides the connections to other workers: 128 of strangers, and what the program has open.
constexpr std::uint64_t kOtherFiles = 256;
constexpr Duration kWelcomeTimeout = std::chrono::seconds(30);
// Equal on all processes of one running kernel.
std::string HostId() {
  std::ifstream in("/proc/sys/kernel/random/boot_id");
  std::string id;
  std::getline(in, id);
  return id;
}

std::string HostName() {
  char name[256] = {};
  return ::gethostname(name, sizeof name - 1) == 0 ? name : "unknown";
}

// How much of the contributions was final before the end of their last runs.
struct Early {
  std::uint64_t parts = 0;
  std::uint64_t blocks = 0;
  std::uint64_t floats = 0;  // that owners were told of

  void Add(const FinalBuckets& run, std::uint32_t told) {
    ++parts;
    blocks += run.blocks();
    floats += run.Floats(told);
  }
  std::string Text(const JobDescription& job) const {
    const auto percent = [&](std::uint64_t early, std::uint64_t each) {
      return 100.0 * static_cast<double>(early) / static_cast<double>(parts * each);
    };
    return fmt::format(
        "final before the end of a contribution's last run: {:.1f} % of the blocks; could travel "
        "then: {:.1f} % of the gradient",
        percent(blocks, job.blocks.size()), percent(floats, job.parameter_count));
  }
};

msg::Reading ReadingOf(const UnitResult& result) {
  msg::Reading reading;
  if (result.waited) {
    reading.waited_ns =
        static_cast<std::uint64_t>(std::max<std::int64_t>(result.waited->count(), 0));
  }
  if (result.samples_ahead) {
    reading.ahead = std::min(*result.samples_ahead, msg::kMaxSamplesAhead);
  }
  return reading;
}

// Joins, builds what the exchange needs out of the job's config and the description, and stands
// between the training loop and the core: units out of the compute queue become Work, what the loop
// reports becomes events. It decides what is the compute thread's alone: which memory a unit adds
// to and when that is cleared, which buckets are final, how a unit is paced.
//
// Built up in this order, and taken down in the other: channel to the coordinator, optimizer,
// buckets, buffers, pacer, data plane.
class SessionImpl final : public Session {
 public:
  explicit SessionImpl(SessionOptions options) : options_(std::move(options)) {}

  ~SessionImpl() override {
    if (control_ && (!ended_ || leave_untold_)) control_->Send(msg::Leave{leave_reason_});
    inbox_.Stop();
    plane_.reset();  // before the channel, to which it speaks
    control_.reset();
  }

  Status Open() {
    auto address = ParseHostPort(options_.coordinator);
    if (!address) return address.error();
    const Status open = CheckDataHost(options_.data_host, !options_.secret_file.empty());
    if (!open.ok()) return open.error();
    ControlLink::Callbacks callbacks;
    callbacks.on_message = [this](msg::ToWorker message) { inbox_.Put(std::move(message)); };
    callbacks.on_closed = [this](const Error& error) { inbox_.Close(error); };
    callbacks.run_in_hand = [this] { return run_watch_.InHand(); };
    auto control = ControlLink::Connect(*address, options_.secret_file, options_.connect_timeout,
                                        std::move(callbacks));
    if (!control) return control.error();
    control_ = std::move(*control);
    control_->Send(msg::Hello{.protocol = kProtocolVersion,
                              .version = Version(),
                              .host = HostName(),
                              .pid = static_cast<std::uint64_t>(::getpid()),
                              .device = options_.device,
                              .wanted = options_.wanted,
                              .host_id = HostId(),
                              .settings = options_.settings});
    auto answer = inbox_.Wait(std::min(kWelcomeTimeout, options_.connect_timeout));
    if (!answer && answer.error().code == ErrorCode::kTimeout) {
      // Who has proven the secret is one.
      if (!options_.secret_file.empty()) {
        return Error{
            ErrorCode::kTimeout,
            fmt::format("the coordinator at {} has proven the secret, and its welcome does "
                        "not come: it is stopped, or the way to it loses large packets "
                        "(its ends differ in MTU)",
                        options_.coordinator)};
      }
      return Error{ErrorCode::kTimeout,
                   fmt::format("{} takes connections and does not answer: is a coordinator "
                               "listening there, and not something else?",
                               options_.coordinator)};
    }
    if (!answer) {
      return Error{answer.error().code, fmt::format("the coordinator at {}: {}",
                                                    options_.coordinator, answer.error().message)};
    }
    if (const auto* refuse = std::get_if<msg::Refuse>(&*answer)) {
      ended_ = true;
      return Error{refuse->try_again ? ErrorCode::kTryAgain : ErrorCode::kRefused,
                   fmt::format("the coordinator refuses this worker: {}", refuse->reason)};
    }
    auto* welcome = std::get_if<msg::Welcome>(&*answer);
    if (welcome == nullptr)
      return Error{ErrorCode::kInvalid, "the coordinator did not begin with a welcome"};
    welcome_ = std::move(*welcome);
    std::vector<Setting> settings;
    for (const auto& [key, value] : options_.overrides) settings.push_back({key, value});
    auto config = ParseJobConfig(welcome_.config_text, "the job's config", settings);
    if (!config) return config.error();
    config_ = std::move(*config);
    control_->SetTimeout(FromSeconds(config_.liveness.timeout_s));
    return {};
  }

  const JobConfig& config() const override { return config_; }
  MemberId self() const override { return welcome_.self; }
  std::uint32_t workers() const override { return welcome_.workers; }

  Status Begin(JobDescription description) override {
    description_ = std::move(description);
    const bool custom = config_.optimizer.custom();
    NoteGroups();
    if (Status can_be = CheckDescription(description_, custom); !can_be) return can_be;
    if (config_.policy.local()) {
      if (description_.collect || description_.memory) {
        return Error{ErrorCode::kInvalid,
                     "policy local takes its steps on the CPU: leave --device at cpu"};
      }
      auto steps = LocalSteps::Make(config_, welcome_.workers, description_.parameter_count,
                                    description_.groups);
      if (!steps) return steps.error();
      local_steps_ = std::make_shared<LocalSteps>(std::move(*steps));
    }
    if (custom && description_.update_state_tensors) {
      optimizer_ = MakeCustomOptimizer(*description_.update_state_tensors);
    } else {
      auto optimizer = local_steps_ ? MakeOptimizer(OuterOptimizer(config_))
                                    : MakeOptimizer(config_.optimizer, description_.groups);
      if (!optimizer) return optimizer.error();
      optimizer_ = std::move(*optimizer);
    }
    const NumberType type = NumberTypeOf(config_.exchange.dtype);
    const bool factors = config_.exchange.rank() > 0;
    if (factors && description_.tensors.empty()) {
      return Error{ErrorCode::kInvalid,
                   "exchange.compression = powersgd needs the shapes of the tensors"};
    }
    if (factors) optimizer_ = WithFactors(std::move(optimizer_));
    if (Status names = CheckNames(description_.tensors, optimizer_->state_names()); !names) {
      return names;
    }
    if (config_.exchange.compressed() && description_.memory) {
      return Error{ErrorCode::kInvalid,
                   fmt::format("exchange.compression = {} is for gradients in the host's memory: "
                               "with a GPU set exchange.memory = host too",
                               config_.exchange.compression)};
    }
    buckets_.emplace(description_.blocks, description_.finish_order, config_.exchange.bucket_bytes,
                     config_.exchange.number_bytes(),
                     custom ? Layout::Copies::kWhole : Layout::Copies::kBuckets,
                     Compression{.kept = config_.exchange.kept(),
                                 .rank = config_.exchange.rank(),
                                 .matrices = factors ? MatricesOf(description_.tensors)
                                                     : std::vector<Matrix>()});
    if (factors) TellFactors();
    LOCKSTEP_CHECK(buckets_->layout().parameter_count() == description_.parameter_count,
                   "blocks of {} parameters in a model of {}", buckets_->layout().parameter_count(),
                   description_.parameter_count);
    const bool shared_out = config_.optimizer.Shards(welcome_.workers) > 0;
    const bool mapping = config_.exchange.mapping == "auto";
    if (!mapping) no_arena_ = "exchange.mapping is off";
    const auto memory = std::move(description_.memory);
    // A device's memory is taken a buffer at a time, so there nothing is saved.
    sums_apart_ = memory == nullptr && !shared_out && config_.exchange.algorithm == "direct";
    const auto parts = shared_out    ? WorkerBuffers::Parts::kSumsAndState
                       : sums_apart_ ? WorkerBuffers::Parts::kSums
                                     : WorkerBuffers::Parts::kNone;
    const auto make = [&](bool arena) {
      return WorkerBuffers::Make(buckets_->layout(), StateTensors(), arena, memory, type, parts,
                                 config_.optimizer.Shards(welcome_.workers));
    };
    auto buffers = make(mapping);
    if (!buffers && mapping) {
      no_arena_ = buffers.error().message;
      spdlog::warn("no mapping for peers on this host: {}", no_arena_);
      buffers = make(false);
    }
    if (!buffers) return buffers.error();
    buffers_ = std::move(*buffers);
    contribution_.emplace(config_, self().worker, buckets_->layout(), *buffers_);

    pacer_ = std::make_unique<Pacer>(Pacer::Floor{FromSeconds(config_.emulate.unit_time_s),
                                                  EmulatedUnitSamples(config_, welcome_.workers)},
                                     inbox_.welcomed_at() - Duration(welcome_.age_ns),
                                     self().worker, welcome_.workers);
    std::string slowdowns;
    for (const SlowdownSpec& spec : options_.slowdowns) {
      if (AppliesTo(spec, self().worker)) slowdowns += ToString(spec) + "\n";
    }
    if (options_.slowdowns.size() > kMaxSlowdownSpecs / 2 ||
        slowdowns.size() > kMaxSlowdownBytes / 2) {
      return Error{ErrorCode::kInvalid,
                   fmt::format("--slowdown: there are more than {}, or together they are too long",
                               kMaxSlowdownSpecs / 2)};
    }
    compute_.OnCancelled([this] { pacer_->Wake(); });
    if (Status set = SetSlowdowns(slowdowns); !set.ok()) return set;

    AllowOpenFiles();
    auto plane =
        DataPlane::Start(MakeSetup(), buckets_->layout(), *buffers_, *optimizer_, compute_);
    if (!plane) return plane.error();
    plane_ = std::move(*plane);
    inbox_.ExpectAll();
    control_->Send(msg::Ready{
        .transports = plane_->offers(),
        .mapping_address = plane_->mapping_address(),
        .dataset_digest = description_.dataset_digest,
        .train_samples = description_.train_samples,
        .test_samples = description_.test_samples,
        .parameter_count = description_.parameter_count,
        .state_tensors = StateTensors(),
        .tensors = description_.tensors,
        .state_names = optimizer_->state_names(),
        .slowdowns = std::move(slowdowns),
        .initial_digest = description_.own_parameters ? std::string() : description_.initial_digest,
        .run_bound = description_.run_bound,
        .own_parameters = description_.own_parameters});
    inbox_.PassTo({.on_message = [this](msg::ToWorker message) { Deliver(std::move(message)); },
                   .on_gone =
                       [this](std::string reason) {
                         plane_->Post(event::CoordinatorGone{std::move(reason)});
                       }});
    std::lock_guard lock(leaving_);
    if (std::exchange(leave_untold_, false)) control_->Send(msg::Leave{leave_reason_});
    return {};
  }

  void TellFactors() const {
    const Layout& layout = buckets_->layout();
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

  // The job's own rules have them; where the program makes the updates they are its own affair.
  void NoteGroups() {
    if (config_.optimizer.custom()) description_.groups.clear();
    if (description_.groups.empty()) return;
    description_.dataset_digest += "; " + DigestOfGroups(description_.groups);
  }

  Work NextWithin(Duration limit) override {
    Back();
    for (;;) {
      auto pick = compute_.Next(limit);
      std::optional<Work> work = WorkOf(pick);
      if (!work) continue;
      if (const auto& counts = pick.counts) {
        work->counted =
            Work::Counted{counts->round,   counts->epoch,  counts->samples, counts->loss,
                          counts->metrics, counts->policy, counts->slow};
      }
      return *std::move(work);
    }
  }

  bool EndsPart() override {
    std::lock_guard lock(reporting_);
    return SealBegun();
  }

  // What is said before it is known that the run is its contribution's last counts as well: it is
  // handed on with the first block that is said after that.
  void BlockFinal(std::uint32_t block) override {
    std::lock_guard lock(reporting_);
    LOCKSTEP_CHECK(in_run_, "BlockFinal without a run");
    const std::uint32_t buckets = buckets_->Mark(block);
    if (!contribution_->GoesEarly() || !SealBegun()) return;
    // The last bucket is the seal's to tell, which comes at once.
    if (buckets == told_ || buckets == buckets_->layout().bucket_count()) return;
    told_ = buckets;
    contribution_->SendEarly(buckets);
    plane_->Post(event::BucketsFinal{.work = take_.work, .part = take_.part, .buckets = buckets});
  }

  void Done(const UnitResult& result) override {
    Back();
    {
      std::lock_guard lock(reporting_);
      LOCKSTEP_CHECK(in_run_, "Done without a run");
      LOCKSTEP_CHECK(result.divisor.value_or(0) <= kMaxRunDivisor, "a run that counts for {}",
                     *result.divisor);
      in_run_ = false;
    }
    if (local_steps_ && !compute_.cancelled().load()) {
      local_steps_->UnitDone(result.samples, result.divisor.value_or(result.samples));
    }
    const Time ended = pacer_->Pace(compute_.cancelled(), compute_.ended());
    run_watch_.End();
    // Before the run is reported: then either the core sees that this thread has something in hand.
    if (!ends_part_ && compute_.BeginSeal()) {
      ends_part_ = true;
      Collect();
    }
    event::RunDone run{.work = take_.work,
                       .part = take_.part,
                       .samples = result.samples,
                       .loss_sum = result.loss_sum,
                       .units = pacer_->Split(ended),
                       .metrics = std::exchange(logged_, {}),
                       .divisor = result.divisor,
                       .reading = ReadingOf(result)};
    if (ends_part_) {
      if (sends_early_) early_.Add(*buckets_, told_);
      plane_->PostEndOfPart(std::move(run), Seal(take_.work, take_.part));
    } else {
      plane_->Post(std::move(run));
    }
  }

  Status Log(Metric metric) override {
    if (!in_run_) return Error{ErrorCode::kInvalid, "a metric is logged without a run"};
    if (metric.name.empty() || metric.name.size() > kMaxMetricNameBytes) {
      return Error{ErrorCode::kInvalid, fmt::format("a metric's name has {} bytes, of 1 to {}",
                                                    metric.name.size(), kMaxMetricNameBytes)};
    }
    if (!IsPrintable(metric.name)) {
      return Error{ErrorCode::kInvalid,
                   fmt::format("a metric's name, {}, is no printable text", Quoted(metric.name))};
    }
    const bool mean = metric.reduction == Reduction::kMean;
    if (mean && (metric.samples == 0 || metric.samples > run_.samples().size())) {
      return Error{ErrorCode::kInvalid,
                   fmt::format("{} is a mean over {} samples of a run that has {}", metric.name,
                               metric.samples, run_.samples().size())};
    }
    if (!mean) metric.samples = 0;
    const auto same = [&](const Metric& other) { return SameMetric(other, metric); };
    if (std::ranges::any_of(logged_, same)) {
      return Error{ErrorCode::kInvalid, fmt::format("{} was logged twice in a run", metric.name)};
    }
    const auto name = std::pair(metric.name, metric.reduction);
    if (metric_names_.size() >= kMaxMetrics && !metric_names_.contains(name)) {
      return Error{ErrorCode::kInvalid,
                   fmt::format("{} is one metric more than the {} that a job can have", metric.name,
                               kMaxMetrics)};
    }
    metric_names_.insert(name);
    logged_.push_back(std::move(metric));
    return {};
  }

  void EvaluationDone(double loss_sum, std::uint64_t correct) override {
    LOCKSTEP_CHECK(chunk_, "EvaluationDone without an evaluation");
    const action::EvaluateChunk chunk = *std::exchange(chunk_, std::nullopt);
    LOCKSTEP_CHECK(correct <= chunk.range.size(),
                   "EvaluationDone with {} samples that are right, of {}", correct,
                   chunk.range.size());
    plane_->Post(event::ChunkEvaluated{.evaluation = chunk.evaluation,
                                       .range = chunk.range,
                                       .loss_sum = loss_sum,
                                       .correct = correct});
  }

  void UpdateDone() override {
    LOCKSTEP_CHECK(update_, "UpdateDone without an update");
    plane_->EndUpdate(*std::exchange(update_, std::nullopt));
  }

  std::shared_ptr<const void> Keep(const float* at) override {
    LOCKSTEP_CHECK(buffers_ != nullptr, "memory is kept before Begin");
    if (!local_steps_) return WorkerBuffers::Keep(buffers_, at);
    return std::make_shared<std::pair<std::shared_ptr<LocalSteps>, std::shared_ptr<const void>>>(
        local_steps_, WorkerBuffers::Keep(buffers_, at));
  }

  const std::atomic<bool>& Cancelled() const override { return compute_.cancelled(); }

  void Interrupt(std::string reason) override {
    std::lock_guard lock(leaving_);
    if (std::exchange(interrupted_, true)) return;  // the first reason is what it leaves for
    leave_reason_ = reason;
    const bool begun = inbox_.IfPassing([&] { plane_->Post(event::LeaveAsked{leave_reason_}); });
    if (begun) return;
    leave_untold_ = true;  // until Begin is over, or the session
    compute_.End({.reason = std::move(reason), .left = true});
  }

  // As Stop, on the channel itself: it is for the coordinator alone.
  Status Away(Duration at_most, std::string reason) override {
    LOCKSTEP_CHECK(plane_ != nullptr, "Away before Begin");
    if (at_most <= Duration{} || at_most > kMostAbsence) {
      return Error{ErrorCode::kInvalid,
                   fmt::format("an absence of {:g} s: it lasts more than 0 and at most {:g}",
                               Seconds(at_most), Seconds(kMostAbsence))};
    }
    if (away_since_) return Error{ErrorCode::kInvalid, "this worker is away already"};
    away_since_ = MonotonicNow();
    control_->Send(msg::Away{at_most.count(), std::move(reason)});
    return {};
  }

  // A unit's time is what computing it takes.
  void Back() override {
    if (!away_since_) return;
    const Duration spent = MonotonicNow() - *std::exchange(away_since_, std::nullopt);
    pacer_->LeaveOut(spent);
    run_watch_.LeaveOut(spent);
    control_->Send(msg::Back{});
  }

  // Before anything that this thread reports later, on the same channel.
  void Stop(std::string reason) override { control_->Send(msg::StopAsked{std::move(reason)}); }

 private:
  std::uint32_t StateTensors() const {
    return static_cast<std::uint32_t>(optimizer_->state_names().size());
  }

  DataPlane::Setup MakeSetup() {
    DataPlane::Setup setup;
    setup.core.self = welcome_.self;
    setup.core.term = welcome_.term;
    setup.core.host_id = HostId();
    setup.core.mapping = buffers_->arena() != nullptr;
    setup.no_arena = no_arena_;
    setup.core.state_tensors = StateTensors();
    setup.core.shards = config_.optimizer.Shards(welcome_.workers);
    setup.core.sums_apart = sums_apart_;
    setup.core.clip = local_steps_ ? 0 : config_.optimizer.clip;
    setup.core.piece_bytes = config_.exchange.piece_bytes;
    setup.core.fetch_window = config_.exchange.window;
    setup.core.queue_capacity = kMostUnits;
    setup.core.run_bound = description_.run_bound;
    setup.core.train_samples = description_.train_samples;
    setup.core.test_samples = description_.test_samples;
    setup.core.unit_samples = config_.job.global_batch;
    setup.job_key = welcome_.job_key;
    setup.data_host = options_.data_host.empty() ? control_->local_address() : options_.data_host;
    setup.encryption = config_.exchange.encryption == "on";
    setup.seed = config_.job.seed;
    if (config_.exchange.rounding == "stochastic") setup.rounding_seed = config_.job.seed;
    setup.connections = config_.exchange.connections;
    setup.members = welcome_.workers;
    setup.threads = {.configured = config_.exchange.threads,
                     .environment = ThreadsOf(std::getenv("OMP_NUM_THREADS")),
                     .processors = UsableProcessors(),
                     .host_id = setup.core.host_id};
    setup.timeouts = TimeoutsFrom(FromSeconds(config_.liveness.timeout_s));
    setup.core.formation_timeout = setup.timeouts.formation;
    setup.core.peer_silence = setup.timeouts.silence;
    setup.core.finish_timeout = FromSeconds(config_.liveness.timeout_s);
    setup.paths = transport::paths::LookAround();
    setup.transports = transport::paths::Choose(config_.exchange.transport, setup.paths.machine);
    setup.paths.gpu = options_.device.starts_with("cuda");
    setup.paths.gpu_pci = options_.gpu_pci;
    setup.paths.device_exchange = !buffers_->memory().on_host();
    setup.require_gpudirect = options_.require_gpudirect;
    setup.unfit = [this](const std::string& reason) {
      // The reason first: once this worker's connections end, others report that it is not reached.
      control_->Send(msg::Leave{reason}, Guarded([this, reason] {
                       compute_.End({.reason = reason, .failed = true, .unfit = true});
                     }));
    };
    setup.initialize = description_.initialize;
    setup.round_times = options_.on_round;
    setup.to_coordinator = [this](msg::FromWorker message, std::function<void()> sent) {
      control_->Send(std::move(message), Guarded(std::move(sent)));
    };
    setup.slowdown = [this](const std::string& specs) {
      if (Status status = SetSlowdowns(specs); !status.ok())
        spdlog::warn("{}", status.error().message);
    };
    return setup;
  }

  // Each peer may come back while its old connections are not given up yet.
  void AllowOpenFiles() const {
    const std::uint64_t for_peers =
        (welcome_.workers - std::uint64_t{1}) * config_.exchange.connections;
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

  // The control thread may still hold what the plane wants to be told of when the plane has ended.
  std::function<void()> Guarded(std::function<void()> sent) {
    if (!sent) return nullptr;
    return [this, sent = std::move(sent)] { inbox_.IfPassing(sent); };
  }

  Status SetSlowdowns(const std::string& lines) {
    auto specs = ParseSlowdownLines(lines);
    if (!specs) return specs.error();
    pacer_->SetSlowdowns(*std::move(specs));
    return {};
  }

  // Before whoever trains tells why the job has ended for it: that is the last line.
  void TellFigures() {
    if (early_.parts > 0) spdlog::info("{}", early_.Text(description_));
    buffers_->NoteAccount();
    if (options_.on_memory_peak) options_.on_memory_peak(buffers_->peak());
    spdlog::info("most memory of the exchange: {}",
                 Describe(buffers_->peak(), description_.parameter_count * sizeof(float)));
  }

  // The inbox is locked.
  void Deliver(msg::ToWorker message) {
    // Answered by the channel.
    if (std::holds_alternative<msg::Ping>(message)) return;
    if (const auto* refuse = std::get_if<msg::Refuse>(&message)) {
      compute_.End({.reason = WordsOf(*refuse), .failed = true, .unfit = !refuse->try_again});
      run_watch_.PutOut(refuse->reason, FromSeconds(config_.liveness.timeout_s), options_.on_hung);
    }
    if (const auto* commit = std::get_if<msg::Commit>(&message)) compute_.Committed(*commit);
    if (const auto* sums = std::get_if<msg::TakeSums>(&message)) compute_.Committed(sums->commit);
    plane_->Post(event::FromCoordinator{std::move(message)});
  }

  void Collect() {
    if (!description_.collect) return;
    description_.collect({contribution_->gradient(), description_.parameter_count});
  }

  // nullopt: it was nothing for the program.
  std::optional<Work> WorkOf(ComputeQueue::Pick& pick) {
    switch (pick.kind) {
      case ComputeQueue::Pick::Kind::kUpdate:
        return UpdateWork(pick.update);
      case ComputeQueue::Pick::Kind::kRun:
        return TrainWork(pick);
      case ComputeQueue::Pick::Kind::kSeal:
        Collect();
        plane_->Post(Seal(pick.take.work, pick.take.part));
        return std::nullopt;
      case ComputeQueue::Pick::Kind::kEvaluate:
        return EvaluationWork(pick.chunk);
      case ComputeQueue::Pick::Kind::kNone: {
        Work none;
        none.kind = Work::Kind::kNone;
        return none;
      }
      case ComputeQueue::Pick::Kind::kEnd:
        return EndWork(pick.ending);
    }
    return std::nullopt;
  }

  Work EndWork(Ending& ending) {
    if (buffers_ && !ended_) TellFigures();
    ended_ = true;
    Work work;
    work.kind = Work::Kind::kEnd;
    work.failed = ending.failed;
    work.unfit = ending.unfit;
    work.left = ending.left;
    work.final_parameters = ending.final_parameters;
    work.params_digest = std::move(ending.params_digest);
    work.not_final = std::move(ending.not_final);
    work.early = ending.early && !ending.failed;
    if (!work.final_parameters && work.not_final.empty()) work.not_final = ending.reason;
    work.reason = std::move(ending.reason);
    if (buffers_) work.parameters = {buffers_->parameters(), description_.parameter_count};
    return work;
  }

  // A run that is paced is not done when its arithmetic is, so neither are its buckets. With
  // reporting_ held.
  bool SealBegun() {
    if (!ends_part_ && !local_steps_ && !pacer_->Active()) ends_part_ = compute_.BeginSeal();
    return ends_part_;
  }

  Work TrainWork(const ComputeQueue::Pick& pick) {
    pacer_->Begin(pick.work.round, pick.units, MonotonicNow());
    run_watch_.Begin(pick.work.round, pick.units);
    bool first = false;
    {
      std::lock_guard lock(reporting_);
      take_ = pick.take;
      in_run_ = true;
      ends_part_ = false;
      buckets_->BeginRun();
      told_ = 0;
      first = contribution_->BeginRun(pick.work, take_.part);
    }
    float* gradient = contribution_->gradient();
    const std::uint64_t count = description_.parameter_count;
    if (first && local_steps_) {
      local_steps_->Begin({buffers_->parameters(), count}, pick.work.local_rate);
    } else if (first && !description_.collect && buffers_->memory().on_host()) {
      std::memset(gradient, 0, count * sizeof(float));
    }
    const Epoch epoch = pick.work.epoch;
    const auto& order = order_.Of(epoch, config_.job.seed, description_.train_samples);
    for (const Unit& unit : pick.units) {
      LOCKSTEP_CHECK(unit.range.from <= unit.range.to && unit.range.to <= order.size(),
                     "a unit [{}, {}) of {} samples", unit.range.from, unit.range.to, order.size());
    }
    run_.Take(pick.units, order);
    Work work;
    work.kind = Work::Kind::kTrain;
    work.schedule_position = pick.work.position;
    work.round = pick.work.round;
    work.epoch = epoch;
    work.ranges = run_.ranges();
    work.samples = run_.samples();
    work.units = take_.count;
    work.parameters = {pick.work.on_copy ? buffers_->snapshot(0, action::SnapshotKind::kCompute)
                                         : buffers_->parameters(),
                       count};
    if (description_.collect || !buffers_->memory().on_host()) PeekNext(order, &work);
    // What a work is computed with changes between two works only: while this thread is in no unit.
    work.parameters_version = take_.work;
    work.gradient = {gradient, count};
    work.first = first;
    work.tells_final = contribution_->GoesEarly() &&
                       (pick.work.sends_early || !contribution_->SendsGradientItself());
    sends_early_ = work.tells_final;
    if (local_steps_) {
      work.parameters = local_steps_->parameters();
      work.gradient = local_steps_->gradient();
    }
    return work;
  }

  // What it shows may be a mixture of units that were never there.
  void PeekNext(std::span<const std::uint32_t> order, Work* work) {
    const std::vector<Unit> units = compute_.PeekNext();
    std::uint64_t samples = 0;
    for (const Unit& unit : units) {
      if (unit.range.from >= unit.range.to || unit.range.to > order.size()) return;
      samples += unit.range.size();
    }
    if (samples == 0 || samples > 2 * work->samples.size()) return;
    next_run_.Take(units, order);
    work->next_ranges = next_run_.ranges();
    work->next_samples = next_run_.samples();
  }

  Work EvaluationWork(const action::EvaluateChunk& chunk) {
    chunk_ = chunk;
    Work work;
    work.kind = Work::Kind::kEvaluate;
    work.range = chunk.range;
    work.parameters = {buffers_->snapshot(0, action::SnapshotKind::kEvaluation),
                       description_.parameter_count};
    work.parameters_version = chunk.evaluation;
    return work;
  }

  Work UpdateWork(const ProgramUpdate& update) {
    update_ = update;
    const std::uint64_t count = description_.parameter_count;
    Work work;
    work.kind = Work::Kind::kUpdate;
    work.round = update.round;
    work.update = {buffers_->parameters(), count};
    work.parameters = work.update;
    work.gradient = {buffers_->update_gradient(), count};
    if (const std::uint32_t tensors = StateTensors() - (config_.exchange.rank() > 0 ? 1 : 0);
        tensors > 0) {
      work.state = {buffers_->At({BufferKind::kState, 1, {}}), tensors * count};
    }
    work.learning_rate = update.learning_rate;
    work.fraction = update.fraction;
    work.update_samples = update.samples;
    work.steps = update.steps;
    work.schedule_position = update.position;
    return work;
  }

  event::PartSealed Seal(std::uint32_t work, PartIndex part) {
    if (local_steps_) {
      const std::uint64_t count = description_.parameter_count;
      local_steps_->Seal({buffers_->parameters(), count}, {contribution_->gradient(), count});
    }
    const std::int64_t sealed_ns = MonotonicNow().time_since_epoch().count();
    const std::optional<double> squares = contribution_->SampledSquares();
    return {.work = work,
            .part = part,
            .sealed_ns = sealed_ns,
            .finite = contribution_->Finish(),
            .sampled_squares = squares};
  }

  const SessionOptions options_;
  RunWatch run_watch_;
  ComputeQueue compute_;
  CoordinatorInbox inbox_{
      [this](const Error& broken) { compute_.End({.reason = broken.message, .failed = true}); }};
  msg::Welcome welcome_;
  JobConfig config_;
  JobDescription description_;
  std::unique_ptr<Optimizer> optimizer_;
  std::optional<FinalBuckets> buckets_;
  std::shared_ptr<WorkerBuffers> buffers_;  // not this session's alone: Keep
  std::unique_ptr<Pacer> pacer_;
  std::unique_ptr<ControlLink> control_;
  std::unique_ptr<DataPlane> plane_;
  std::mutex leaving_;  // guards the next three
  bool interrupted_ = false;
  bool leave_untold_ = false;  // it was interrupted before there was anybody to tell it
  std::string leave_reason_ = "the worker ends";  // told where it leaves before the job's end

  // The compute thread's own.
  bool sums_apart_ = false;
  std::string no_arena_;  // why peers on this host cannot map this worker's memory
  std::shared_ptr<LocalSteps> local_steps_;                   // null: the policy is not local
  std::vector<Metric> logged_;                                // in the run in hand
  std::set<std::pair<std::string, Reduction>> metric_names_;  // ever
  // The run in hand while in_run_, from Next to Done; else the last one. While it is in hand other
  // threads may say what of it is final, so all that they look at changes under the lock only.
  std::mutex reporting_;
  UnitQueue::Take take_;
  bool in_run_ = false;
  bool ends_part_ = false;  // its part is being sealed, with it
  std::uint32_t told_ = 0;  // buckets that the core knows to be final
  Early early_;
  bool sends_early_ = true;  // in the run in hand
  RunSamples run_;
  RunSamples next_run_;
  std::optional<Contribution> contribution_;    // to which the last run added
  std::optional<action::EvaluateChunk> chunk_;  // that is being evaluated
  std::optional<ProgramUpdate> update_;         // that is being made
  std::optional<Time> away_since_;
  bool ended_ = false;  // the loop knows: nothing is left to tell the coordinator
  SampleOrder order_;
};

}  // namespace

SessionEnd::SessionEnd() : process_(::getpid()) {}

void SessionEnd::operator()(Session* session) const {
  if (::getpid() == process_) delete session;
}

Result<SessionPtr> Session::Join(SessionOptions options) {
  auto session = std::make_unique<SessionImpl>(std::move(options));
  if (Status opened = session->Open(); !opened.ok()) return opened.error();
  return SessionPtr(session.release());
}

}  // namespace lockstep::worker
