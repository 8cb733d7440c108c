#include "tools/simulate/fault_job.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <memory>
#include <set>

#include "policies/registry.h"
#include "tools/simulate/checker.h"
#include "tools/simulate/coordinator_deaths.h"
#include "tools/simulate/describe.h"
#include "tools/simulate/epoch_end_check.h"
#include "tools/simulate/recording.h"
#include "tools/simulate/truth.h"

namespace lockstep::simulate {
namespace {

PolicySection DrawPolicy(std::uint32_t workers, RandomStream& random) {
  const std::vector<std::string> closing = policies::ClosingRuleNames();
  const std::vector<std::string> work = policies::WorkRuleNames();
  PolicySection section;
  section.name = fmt::format("{}+{}", closing[random.NextBelow(closing.size())],
                             work[random.NextBelow(work.size())]);
  if (random.NextBelow(8) == 0) section.name = "auto";
  if (random.NextBelow(3) == 0) section.backup_workers = PolicySection::kAuto;
  if (random.NextBelow(12) == 0) {
    section.name = fmt::format("local+{}", closing[random.NextBelow(closing.size())]);
  }
  if (random.NextBelow(6) == 0) {
    section.name = "async";
    const std::array<std::uint32_t, 4> bounds = {0, 1, 4, PolicySection::kAuto};
    section.async_staleness = bounds[random.NextBelow(bounds.size())];
  }
  // Some policies make no sense with so few workers.
  return policies::MakePolicy(section, workers).ok() ? section : PolicySection{};
}

ScheduleSection DrawSchedule(RandomStream& random) {
  const std::array<const char*, 4> names = {"constant", "step", "exponential", "cosine"};
  ScheduleSection section;
  section.name = names[random.NextBelow(names.size())];
  if (random.NextBelow(2) == 0) section.warmup = static_cast<double>(1 + random.NextBelow(40));
  // Jobs have up to some thousands of updates, and the schedule's effect should last to the end.
  section.step_every = static_cast<double>(50 + random.NextBelow(200));
  section.factor = 0.8 + 0.02 * static_cast<double>(random.NextBelow(10));
  section.final_lr = 0.001 * static_cast<double>(random.NextBelow(3));
  return section;
}

coordinator::StartParameters StartOf(const FaultJob& job) {
  coordinator::StartParameters start;
  start.workers = job.workers;
  start.config.job.epochs = job.epochs;
  start.config.job.global_batch = job.global_batch;
  start.config.job.min_workers = job.min_workers;
  start.config.policy = job.policy;
  start.config.schedule = job.schedule;
  start.config.optimizer.linear_scaling = job.linear_scaling;
  start.config.optimizer.replicas = job.replicas;
  start.config.exchange.algorithm = job.algorithm;
  start.config.audit.share = job.audit_share;
  if (!job.poisoned.empty()) start.config.job.on_nan = "skip";
  if (job.given_under_way > 0) start.given_under_way = job.given_under_way;
  start.plugin = job.plugin;
  start.config.liveness.timeout_s = 2;
  start.config.exchange.mapping = job.cluster.hosts > 0 ? "auto" : "off";
  start.job_id = "job";
  // It falls between some rounds of most jobs; a resume loses the commits since the last one.
  const bool resumes = std::ranges::any_of(
      job.faults, [](const Fault& fault) { return fault.kind == FaultKind::kResume; });
  if (resumes) start.config.checkpoint.every_rounds = 5 + job.seed % 40;
  const bool takeovers =
      std::ranges::any_of(job.faults, [](const Fault& fault) { return IsTakeover(fault.kind); });
  if (!takeovers) start.config.job.coordinator_timeout_s = 0;
  if (takeovers && job.seed % 2 == 0) start.config.checkpoint.every_rounds = 5 + job.seed % 40;
  return start;
}

std::uint32_t ShardsOf(const FaultJob& job) {
  return StartOf(job).config.optimizer.Shards(job.workers);
}

Cluster::Options ClusterOf(const FaultJob& job) {
  Cluster::Options options = job.cluster;
  options.machine.shards = ShardsOf(job);
  options.machine.reattaches = Reattaches(StartOf(job));
  return options;
}

// The coordinator's reason when no member is left.
constexpr const char* kNotTogether = "the workers together do not hold";

bool NobodyIsLeft(const std::string& reason) {
  if (reason.find("the last copy of shard") != std::string::npos) return true;
  return reason.starts_with("no worker holds") || reason.starts_with(kNotTogether) ||
         reason.starts_with("all workers left") || reason.find("cannot reach") != std::string::npos;
}

// A matrix in each block, without some numbers at its start.
std::vector<worker::Matrix> MatricesOf(const FaultJob& job) {
  std::vector<worker::Matrix> matrices;
  for (const FloatRange& block : job.blocks) {
    const std::uint64_t columns = 5 + block.count % 29;
    const std::uint64_t rows = block.count / columns;
    if (job.rank == 0 || rows < 2) continue;
    matrices.push_back({block.end() - rows * columns, rows, columns});
  }
  std::ranges::sort(matrices, {}, &worker::Matrix::first);
  return matrices;
}

class Run {
 public:
  Run(const FaultJob& job, const std::function<void(const std::string&)>& history)
      : job_(job),
        history_(history),
        truth_(worker::Layout(job.blocks, job.bucket_bytes, sizeof(float), job.copies,
                              worker::Compression{
                                  .kept = job.kept, .rank = job.rank, .matrices = MatricesOf(job)}),
               job.cluster.machine.clip, ShardsOf(job) > 0, job.cluster.own_parameters),
        network_(job.seed),
        compute_(job.unit_time, job.slow, job.slow_factor),
        cluster_(ClusterOf(job), truth_.layout(), &network_, &compute_,
                 [this](const MemberId& self) {
                   return std::make_shared<RealNumbers>(
                       self, &truth_, &outcome_.numbers,
                       RealNumbers::Poison{job_.poisoned, job_.algorithm != "direct"});
                 }),
        simulation_(
            StartOf(job), job.seed, {},
            [this](WorkerHost* host) { return std::make_unique<StepWorker>(host, &cluster_); }),
        checker_({job.cluster.train_samples, StartOf(job).config, job.cluster.weighed},
                 &simulation_) {
    recording_.Attach(&simulation_);
    cluster_.on_action = [this](const MemberId& member, const worker::Action& action) {
      const auto* end = std::get_if<worker::action::EpochEnd>(&action);
      if (end != nullptr) epoch_ends_.OnShown(member, *end);
      const auto* told = std::get_if<worker::action::ToCoordinator>(&action);
      const auto* applied = told != nullptr ? std::get_if<msg::Applied>(&told->message) : nullptr;
      if (applied != nullptr) epoch_ends_.OnApplied(member, applied->round, applied->attempt);
    };
    Simulation::Hooks& hooks = simulation_.hooks;
    hooks.on_event = [this](const coordinator::Event& event) { OnEvent(event); };
    hooks.on_send = [this](const coordinator::Send& send) { OnSend(send); };
    hooks.on_close = [this](const coordinator::Close& close) { checker_.OnClose(close); };
    hooks.on_checkpoint = [this](const auto& state) { checker_.OnCheckpoint(state); };
    hooks.on_saved = [this](const SavedCheckpoint& saved) {
      truth_.OnCheckpoint(saved.state.next_round, StateOf(saved));
      last_saved_ = saved.state.next_round;
    };
    hooks.on_resumed = [this](const SavedCheckpoint& saved) {
      Tell("*** the job is resumed before round {}", saved.state.next_round);
      outcome_.counts["resumed"]++;
      members_.clear();
      checker_.OnCoordinatorGone();
      checker_.OnResumed(saved.state);
      truth_.OnResumed(saved.state.next_round, StateOf(saved));
      epoch_ends_.OnResumed(saved.state.next_round);
    };
    hooks.on_crashed = [this] {
      members_.clear();
      checker_.OnCoordinatorGone();
      truth_.OnCrashed();
    };
    hooks.on_taken_over = [this](const coordinator::JobState& state) {
      Tell("*** the job is taken over before round {}", state.next_round);
      outcome_.counts["taken over"]++;
      taken_over_ = true;
      checker_.OnResumed(state);
      epoch_ends_.OnResumed(state.next_round);
    };
    hooks.on_closed = [this](const auto& record) {
      ++outcome_.rounds;
      checker_.OnClosed(*record);
      epoch_ends_.OnClosed(record->round, record->epoch, record->attempts.back().attempt);
    };
    hooks.on_fault = [this](const Fault& fault) {
      Tell("*** {}", ToString(fault));
      network_.Inject(simulation_.now(), fault);
      cluster_.Inject(fault);
    };
    hooks.after_step = [this] { checker_.AfterStep(); };
    if (std::ranges::any_of(job.faults, [](const Fault& f) { return ConcernsFiles(f.kind); })) {
      simulation_.KeepFiles(std::filesystem::temp_directory_path());
    }
    for (std::uint32_t i = 0; i < job.workers; ++i) {
      simulation_.AddWorker(std::chrono::milliseconds(i));
    }
    simulation_.AddFaults(job.faults);
  }

  FaultOutcome Go() {
    const Time until = Simulation::kStart + job_.faults_until + job_.patience;
    while (outcome_.failure.empty() && simulation_.now() <= until && simulation_.RunNext()) {
      if (!truth_.errors().empty()) Fail(truth_.errors().front());
      if (!checker_.failure().empty()) Fail(checker_.failure());
    }
    if (outcome_.failure.empty()) CheckEnd();
    outcome_.took = simulation_.now() - Simulation::kStart;
    outcome_.to_come = simulation_.FaultsToCome();
    outcome_.events = simulation_.queue().run();
    outcome_.applied = truth_.applied();
    outcome_.caught_up = truth_.caught_up();
    if (job_.kept > 0 || job_.rank > 0) outcome_.counts["residuals"] += truth_.residuals().used();
    for (const auto& [name, count] : cluster_.counts) outcome_.counts[name] += count;
    return std::move(outcome_);
  }

 private:
  template <class... Args>
  void Tell(fmt::format_string<Args...> format, Args&&... args) {
    if (!history_) return;
    history_(fmt::format("{:10.6f} {}", Seconds(simulation_.now() - Simulation::kStart),
                         fmt::format(format, std::forward<Args>(args)...)));
  }

  std::string Names(const std::vector<coordinator::ConnectionId>& connections) const {
    std::string names;
    for (const auto connection : connections) {
      const auto member = members_.find(connection);
      names += fmt::format("{}{}", names.empty() ? "" : " ",
                           member == members_.end() ? fmt::format("(connection {})", connection)
                                                    : fmt::format("{}", member->second.worker));
    }
    return names;
  }

  void OnEvent(const coordinator::Event& event) {
    checker_.OnEvent(event);
    if (!history_) return;
    if (const auto* received = std::get_if<coordinator::Received>(&event)) {
      if (std::holds_alternative<msg::Progress>(received->message) ||
          std::holds_alternative<msg::Pong>(received->message)) {
        return;
      }
      Tell("{} -> coordinator: {}", Names({received->connection}),
           coordinator::Describe(received->message));
    } else if (const auto* gone = std::get_if<coordinator::Disconnected>(&event)) {
      Tell("{} -> coordinator: disconnected, {}", Names({gone->connection}), gone->reason);
    }
  }

  static State StateOf(const SavedCheckpoint& saved) {
    const auto floats = [](const std::vector<std::byte>& bytes) {
      std::vector<float> values(bytes.size() / sizeof(float));
      std::memcpy(values.data(), bytes.data(), values.size() * sizeof(float));
      return values;
    };
    State state;
    for (std::uint32_t t = 0; t < saved.tensors.size(); ++t) {
      TensorOf(state, t) = floats(saved.tensors[t]);
    }
    return state;
  }

  void OnSend(const coordinator::Send& send) {
    const msg::ToWorker& message = *send.message;
    if (const auto* welcome = std::get_if<msg::Welcome>(&message)) {
      members_[send.to.front()] = welcome->self;
    }
    if (const auto* start = std::get_if<msg::Start>(&message)) {
      if (std::exchange(taken_over_, false)) TakeOver(*start);
      truth_.OnPlan(start->plan);
    }
    if (const auto* commit = std::get_if<msg::Commit>(&message)) truth_.OnCommit(*commit);
    if (const auto* take = std::get_if<msg::TakeSums>(&message)) truth_.OnCommit(take->commit);
    if (std::holds_alternative<msg::TakeSums>(message)) cluster_.counts["take sums"]++;
    if (std::holds_alternative<msg::FenceAttempt>(message)) cluster_.counts["fence"]++;
    if (std::holds_alternative<msg::Hedge>(message)) cluster_.counts["hedge"]++;
    if (std::holds_alternative<msg::CatchUp>(message)) cluster_.counts["catch up"]++;
    if (std::holds_alternative<msg::Decide>(message)) cluster_.counts["decide"]++;
    if (const auto* commit = std::get_if<msg::Commit>(&message)) {
      if (commit->attempt.value > 0) cluster_.counts["further attempts"]++;
    }
    if (std::holds_alternative<msg::NewOwners>(message)) cluster_.counts["new owners"]++;
    checker_.OnSend(send);
    if (history_ && !std::holds_alternative<msg::Ping>(message)) {
      Tell("coordinator -> {}: {}", Names(send.to), coordinator::Describe(message));
    }
  }

  // By the first that it is said to.
  void TakeOver(const msg::Start& start) {
    if (start.source == StateSource::kHeld || start.source == StateSource::kSeed) {
      truth_.OnTakenOver(start.plan.round);
    } else {
      truth_.OnResumed(start.plan.round, StateOf(*simulation_.disk()));
    }
  }

  bool DiskWasFull() const {
    return std::ranges::any_of(job_.faults, [](const Fault& fault) {
      return fault.kind == FaultKind::kFullDisk || fault.kind == FaultKind::kFailCheckpoint;
    });
  }

  void CheckEnd() {
    const coordinator::JobResult* result = simulation_.result();
    if (result != nullptr) outcome_.audit = result->audit;
    if (result == nullptr) {
      Fail(fmt::format("the job has not finished {:.0f} s after the last fault: {}",
                       Seconds(job_.patience),
                       simulation_.coordinator().Status(simulation_.now()).waiting_for));
    } else if (result->audit && result->audit->differed > 0 && cluster_.flipped.empty()) {
      Fail("two workers' gradients of a unit differ");
    } else if (!result->digest_differs.empty()) {
      Fail("the final parameters differ");
    } else if (result->outcome == coordinator::JobOutcome::kCompleted) {
      checker_.AtEnd(*result);
      if (!checker_.failure().empty()) Fail(checker_.failure());
      if (const std::string ends = epoch_ends_.Failure(); !ends.empty()) Fail(ends);
    } else if (DiskWasFull() && result->reason.find("no space left") != std::string::npos) {
      outcome_.counts["ended by the disk"]++;
    } else if (result->reason.find("infinite or no numbers") != std::string::npos &&
               !truth_.Finite()) {
      outcome_.counts["ended by its numbers"]++;  // drawn rates may diverge
    } else if (!job_.poisoned.empty() && result->reason.find("contribution") != std::string::npos) {
      outcome_.counts["ended by its poison"]++;
    } else if (NobodyIsLeft(result->reason) && !job_.faults.empty()) {
      outcome_.all_lost = true;
      CheckNobodyIsLeft(result->reason);
    } else {
      Fail(fmt::format("the job has {}: {}", Name(result->outcome), result->reason));
    }
  }

  // A worker that had no fault and has the parameters could have continued.
  void CheckNobodyIsLeft(const std::string& reason) {
    if (reason.find("the last copy of shard") != std::string::npos) return;
    // What they hold is of a commit that was noted, and of which no note was left.
    if (simulation_.journal_cut()) return;
    if (reason.starts_with(kNotTogether)) return CheckNotTogether();
    for (const auto& [id, worker] : cluster_.alive) {
      if (!simulation_.Troubled(id)) checker_.AtLoss(reason, id, worker->view());
    }
    if (!checker_.failure().empty()) Fail(checker_.failure());
  }

  // What those without a fault have kept goes together: all have the same version.
  void CheckNotTogether() {
    std::set<std::uint32_t> held;
    for (const auto& [id, worker] : cluster_.alive) {
      if (simulation_.Troubled(id)) continue;
      held.insert(worker->held_shards().begin(), worker->held_shards().end());
    }
    if (held.size() == ShardsOf(job_)) {
      Fail("the workers held all of the optimizer's state, and the job did not go on with it");
    }
  }

  void Fail(std::string what) {
    outcome_.failure = std::move(what);
    outcome_.details = cluster_.Describe();
    for (const auto& m : simulation_.coordinator().Status(simulation_.now()).members) {
      outcome_.details +=
          fmt::format("worker {}.{} {}: {} of {} units{}\n", m.member.worker, m.member.incarnation,
                      Name(m.state), m.units_done, m.units_given, m.owner ? ", owner" : "");
    }
    outcome_.details += recording_.LogText();
  }

  const FaultJob& job_;
  const std::function<void(const std::string&)>& history_;
  FaultOutcome outcome_;
  Truth truth_;
  RandomNetwork network_;
  EvenCompute compute_;
  Cluster cluster_;
  Simulation simulation_;
  Recording recording_;
  Checker checker_;
  EpochEndCheck epoch_ends_;
  std::map<coordinator::ConnectionId, MemberId> members_;
  std::optional<RoundId> last_saved_;
  bool taken_over_ = false;  // and nobody has been told yet
};

}  // namespace

FaultJob DrawFaultJob(const FaultDraw& draw) {
  RandomStream random(draw.seed, 5);
  FaultJob job;
  job.seed = draw.seed;
  job.workers = static_cast<std::uint32_t>(1 + random.NextBelow(kMostDrawnWorkers));
  if (draw.workers) job.workers = *draw.workers;
  while (draw.policy && !draw.workers && job.workers < kMostDrawnWorkers &&
         !policies::MakePolicy(*draw.policy, job.workers).ok()) {
    ++job.workers;  // it needs more workers
  }
  const PolicySection policy = DrawPolicy(job.workers, random);
  job.policy = draw.policy.value_or(policy);
  job.plugin = draw.plugin;
  if (job.plugin != nullptr) job.policy.name = "plugin";
  if (random.NextBelow(4) == 0) {
    job.min_workers = static_cast<std::uint32_t>(1 + random.NextBelow(job.workers));
  }
  job.global_batch = static_cast<std::uint32_t>(job.workers + random.NextBelow(80));
  job.epochs = 3 + draw.more_epochs;
  // Blocks are in model order, finished from the last to the first, or the reverse.
  std::uint64_t at = 0;
  const std::uint64_t blocks = 1 + random.NextBelow(5);
  for (std::uint64_t b = 0; b < blocks; ++b) {
    const std::uint64_t count = 1 + random.NextBelow(random.NextBelow(3) == 0 ? 5000 : 900);
    job.blocks.push_back({at, count});
    at += count;
  }
  if (random.NextBelow(2) == 0) std::reverse(job.blocks.begin(), job.blocks.end());
  job.bucket_bytes = 4096 * (1 + random.NextBelow(4));
  job.cluster.hosts = static_cast<std::uint32_t>(random.NextBelow(3));
  job.cluster.test_samples = 900;
  worker::MachineConfig& machine = job.cluster.machine;
  machine.piece_bytes = 1024 * (1 + random.NextBelow(8));
  machine.fetch_window = static_cast<std::uint32_t>(1 + random.NextBelow(4));
  machine.inline_bytes = std::array<std::uint64_t, 3>{0, 2048, 32768}[random.NextBelow(3)];
  machine.part_inline_bytes = 2 * machine.inline_bytes;
  machine.clip = random.NextBelow(2) == 0 ? 0.0 : 0.05;
  machine.queue_capacity = 256;
  machine.chunk_bytes = 5000;
  machine.formation_timeout = std::chrono::seconds(2);
  machine.peer_silence = worker::TimeoutsFrom(std::chrono::seconds(2)).silence;
  machine.finish_timeout = std::chrono::seconds(2);
  if (random.NextBelow(2) == 0) {
    job.slow.insert(static_cast<std::uint32_t>(random.NextBelow(job.workers)));
  }
  // It has draws of its own, so that a seed's job is otherwise the same as without them.
  RandomStream more(draw.seed, 6);
  job.schedule = DrawSchedule(more);
  job.cluster.weighed = draw.seed % 2 == 1;
  machine.epoch_ends = draw.seed % 4 < 2;
  // Sixteen times as much for some samples as for others.
  if (draw.seed % 3 == 1) {
    const auto cost = [seed = draw.seed](Epoch epoch, std::uint64_t position) {
      return 1 << Mix64(Mix64(seed ^ Mix64(epoch.value)) ^ position) % 5;
    };
    job.cluster.costs = std::make_shared<KnownCosts>(job.cluster.train_samples, cost);
  }
  job.linear_scaling = more.NextBelow(4) != 0;
  if (job.policy.name != "async") job.kept = draw.kept;
  if (job.policy.name != "async" && draw.rank > 0) {
    job.rank = draw.rank;
    job.kept = 0;
  }
  if (draw.whole_copies) job.copies = worker::Layout::Copies::kWhole;
  FaultMix mix = draw.mix;
  FaultMix added_mix = draw.more;
  const bool synchronous = job.policy.name != "async" && !job.policy.local();
  if (draw.replicas) {
    job.replicas = *draw.replicas;
    if (ShardsOf(job) > 0) {
      job.copies = worker::Layout::Copies::kBuckets;
      if (!synchronous) job.policy = PolicySection{};
      job.kept = 0;
      job.rank = 0;
    }
  }
  job.cluster.own_parameters = draw.own_parameters;
  job.algorithm = draw.algorithm;
  if (job.algorithm != "direct") {
    if (!synchronous) job.policy = PolicySection{};
    job.kept = 0;
    job.rank = 0;
  }
  const bool audited = job.policy.name != "async" && !job.policy.local() && job.kept == 0;
  if (audited && job.rank == 0) job.audit_share = draw.audit_share;
  if (draw.poisoned && job.workers > 2 && job.kept == 0) {
    for (std::uint64_t i = 1 + more.NextBelow(3); i > 0; --i) {
      job.poisoned.push_back(more.NextBelow(job.cluster.train_samples));
    }
  }
  if (job.workers == 1) mix.crashes = false;  // nobody could go on
  job.faults = DrawFaults(mix, job.workers, random);
  // It may cost one worker for good.
  if (job.min_workers >= job.workers) added_mix.endless = false;
  const std::vector<Fault> added = DrawFaults(added_mix, job.workers, more);
  job.faults.insert(job.faults.end(), added.begin(), added.end());
  // Kinds that were added later have draws of their own, so that a seed's others are the same as
  // without them.
  const auto add = [&](bool FaultMix::*kind, std::uint64_t stream, int pause) {
    RandomStream own(draw.seed, stream);
    FaultMix only;
    only.*kind = true;
    only.until = draw.mix.until;
    only.mean_pause = pause * draw.mix.mean_pause;
    const std::vector<Fault> drawn = DrawFaults(only, job.workers, own);
    job.faults.insert(job.faults.end(), drawn.begin(), drawn.end());
  };
  if (draw.absences) add(&FaultMix::absences, 7, 1);
  if (draw.stalls) add(&FaultMix::stalls, 9, 1);
  if (draw.takeovers) add(&FaultMix::takeovers, 10, 2);
  if (draw.files) add(&FaultMix::files, 11, 2);
  if (draw.takeovers) {
    // What is left to do at the end is short, so a time that is drawn hardly ever falls there.
    RandomStream last(draw.seed, 12);
    const auto micros = [&last](std::uint64_t below) {
      return Duration(std::chrono::microseconds(last.NextBelow(below)));
    };
    for (const char* words : {kLastCommit, "Finish"}) {
      if (last.NextBelow(2) == 0) continue;
      Fault fault;
      fault.kind = FaultKind::kCrashCoordinator;
      fault.moment = Moment{words, 1};
      fault.at = micros(last.NextBelow(2) == 0 ? 300 : 20'000);
      fault.length = micros(last.NextBelow(4) == 0 ? 5'000'000 : 300'000);
      job.faults.push_back(fault);
    }
  }
  if (draw.own_parameters) {
    // It falls during the initial broadcast, and in the first round, when the parameters are still
    // requested.
    RandomStream fourth(draw.seed, 8);
    FaultMix early = draw.mix;
    early.crashes = job.workers > 1;
    early.stops = early.control_links = true;
    early.until = std::chrono::milliseconds(25);
    early.mean_pause = std::chrono::milliseconds(3 + 8 * (draw.seed % 3));
    job.given_under_way = 1000 + fourth.NextBelow(12000);
    const std::vector<Fault> first = DrawFaults(early, job.workers, fourth);
    job.faults.insert(job.faults.end(), first.begin(), first.end());
  }
  std::ranges::stable_sort(job.faults, {}, &Fault::at);
  job.cluster.validates = !job.faults.empty();
  job.faults_until = draw.mix.until;
  return job;
}

FaultOutcome RunFaultJob(const FaultJob& job,
                         const std::function<void(const std::string&)>& history) {
  return Run(job, history).Go();
}

}  // namespace lockstep::simulate
