#include "worker/runtime/session.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <mutex>
#include <optional>
#include <utility>

#include "base/emulated_unit.h"
#include "base/log.h"
#include "worker/compute/compute.h"
#include "worker/runtime/contribution.h"
#include "worker/runtime/control_link.h"
#include "worker/runtime/coordinator_inbox.h"
#include "worker/runtime/coordinator_search.h"
#include "worker/runtime/data_plane.h"
#include "worker/runtime/epoch_costs.h"
#include "worker/runtime/gradient_audit.h"
#include "worker/runtime/join.h"
#include "worker/runtime/pacer.h"
#include "worker/runtime/rescue.h"
#include "worker/runtime/residual_files.h"
#include "worker/runtime/run_metrics.h"
#include "worker/runtime/run_samples.h"
#include "worker/runtime/run_watch.h"
#include "worker/runtime/save_parameters.h"
#include "worker/runtime/session_parts.h"

namespace lockstep::worker {
namespace {

std::string OfShards(const std::vector<std::uint32_t>& shards) {
  return shards.empty() ? std::string() : fmt::format(", of {} shards", shards.size());
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

// Stands between the training loop and the core: units out of the compute queue become Work, what
// the loop reports becomes events. It decides what is the compute thread's alone: which memory a
// unit adds to and when that is cleared, which buckets are final, how a unit is paced.
//
// Built up in this order, and taken down in the other: channel to the coordinator (join.h), parts
// (session_parts.h), pacer, data plane.
class SessionImpl final : public Session {
 public:
  explicit SessionImpl(SessionOptions options) : options_(std::move(options)) {}

  ~SessionImpl() override {
    if (!ended_ || leave_untold_) {
      if (channel_->link) channel_->link->Send(msg::Leave{leave_reason_});
      if (search_) search_->Leave(leave_reason_);
    }
    channel_->inbox.Stop();
    plane_.reset();  // before the channel, to which it speaks
    channel_.reset();
  }

  Status Open() {
    auto joined = worker::Join(options_, *channel_, RunInHand());
    if (!joined) return joined.error();
    welcome_ = std::move(joined->welcome);
    SetStandbys(welcome_.standbys);
    config_ = std::move(joined->config);
    return {};
  }

  const JobConfig& config() const override { return config_; }
  MemberId self() const override { return welcome_.self; }
  std::uint32_t workers() const override { return welcome_.workers; }

  Status Begin(JobDescription description) override {
    auto parts = MakeParts(config_, welcome_.workers, options_.device, std::move(description));
    if (!parts) return parts.error();
    parts_ = std::move(*parts);
    costs_.emplace(std::move(parts_->description.costs), config_.job.seed,
                   parts_->description.max_run_cost > 0,
                   [this](event::CostsGiven costs) { plane_->Post(std::move(costs)); });
    if (config_.checkpoint.residuals) residual_files_.emplace(PlaceOfResiduals());
    contribution_.emplace(config_, self().worker, parts_->layout(), *parts_->buffers,
                          residual_files_ ? &*residual_files_ : nullptr);
    if (Status paced = MakePacer(); !paced.ok()) return paced;
    AllowOpenFiles(config_, welcome_.workers);
    return StartExchange({});
  }

  ResidualFiles::Place PlaceOfResiduals() const {
    return {welcome_.run_dir, welcome_.run_id, self().worker};
  }

  // With the coordinator that has welcomed this worker. `before`: what is left of the one before.
  Status StartExchange(const action::Detached& before) {
    const std::optional<HeldParameters>& held = before.held;
    DataPlane::Setup setup = MakeSetup();
    setup.core.held = held;
    setup.core.held_shards = before.shards;
    setup.core.held_whole = before.whole;
    setup.core.first_generation = before.next_generation;
    setup.core.epochs_seen = before.epochs_seen;
    auto plane = DataPlane::Start(std::move(setup), parts_->layout(), *parts_->buffers,
                                  *parts_->optimizer, compute_);
    if (!plane) return plane.error();
    plane_ = std::move(*plane);
    costs_->TellAgain();
    channel_->inbox.ExpectAll();
    const JobDescription& described = parts_->description;
    channel_->link->Send(msg::Ready{
        .transports = plane_->offers(),
        .mapping_address = plane_->mapping_address(),
        .dataset_digest = described.dataset_digest,
        .train_samples = described.train_samples,
        .test_samples = described.test_samples,
        .parameter_count = described.parameter_count,
        .state_tensors = parts_->state_tensors(),
        .tensors = described.tensors,
        .state_names = parts_->optimizer->state_names(),
        .slowdowns = OwnSlowdowns(),
        .initial_digest = described.own_parameters ? std::string() : described.initial_digest,
        .run_bound = described.run_bound,
        .own_parameters = described.own_parameters,
        .held = held,
        .held_shards = {before.shards.begin(), before.shards.end()}});
    channel_->inbox.PassTo(
        {.on_message = [this](msg::ToWorker message) { Deliver(std::move(message)); },
         .on_gone =
             [this](std::string reason) {
               gone_ = true;
               plane_->Post(event::CoordinatorGone{std::move(reason)});
             }});
    std::lock_guard lock(leaving_);
    if (std::exchange(leave_untold_, false)) {
      channel_->link->Send(msg::Leave{leave_reason_});
      compute_.End({.reason = leave_reason_, .left = true});
    }
    return {};
  }

  Work NextWithin(Duration limit) override {
    Back();
    if (std::exchange(epoch_end_shown_, false)) plane_->Post(event::EpochEndSeen{});
    for (;;) {
      auto pick = compute_.Next(limit);
      if (pick.kind == ComputeQueue::Pick::Kind::kOrphaned) {
        if (LookForCoordinator(pick.orphaned.reason) || limit == Duration::max()) continue;
        return NoWork();
      }
      if (pick.kind == ComputeQueue::Pick::Kind::kDetached) {
        GoOnWith(pick.detached);
        continue;
      }
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
    // What is audited is read as it is when the run ends.
    if (Audits()) return;
    const std::uint32_t buckets = parts_->buckets->Mark(block);
    if (!contribution_->GoesEarly() || !SealBegun()) return;
    // The last bucket is the seal's to tell, which comes at once.
    if (buckets == told_ || buckets == parts_->buckets->layout().bucket_count()) return;
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
    if (parts_->local_steps && !compute_.cancelled().load()) {
      parts_->local_steps->UnitDone(result.samples, result.divisor.value_or(result.samples));
    }
    const Time ended = pacer_->Pace(compute_.cancelled(), compute_.ended());
    run_watch_.End();
    if (CountsForNothing()) {
      Collect();
      (void)metrics_.TakeLogged();
      return PostAudit();
    }
    // Before the run is reported: then either the core sees that this thread has something in hand.
    if (!ends_part_ && compute_.BeginSeal()) {
      ends_part_ = true;
      Collect();
    } else if (Audits() && !ends_part_) {
      Collect();
    }
    if (Audits()) PostAudit();
    event::RunDone run{.work = take_.work,
                       .part = take_.part,
                       .samples = result.samples,
                       .loss_sum = result.loss_sum,
                       .units = pacer_->Split(ended),
                       .metrics = metrics_.TakeLogged(),
                       .divisor = result.divisor,
                       .reading = ReadingOf(result)};
    if (ends_part_) {
      if (sends_early_) early_.Add(*parts_->buckets, told_);
      plane_->PostEndOfPart(std::move(run), Seal(take_.work, take_.part));
    } else {
      plane_->Post(std::move(run));
    }
  }

  Status Log(Metric metric) override {
    if (!in_run_) return Error{ErrorCode::kInvalid, "a metric is logged without a run"};
    return metrics_.Log(std::move(metric), run_.samples().size());
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
    LOCKSTEP_CHECK(parts_ != nullptr, "memory is kept before Begin");
    if (!parts_->local_steps) return WorkerBuffers::Keep(parts_->buffers, at);
    return std::make_shared<std::pair<std::shared_ptr<LocalSteps>, std::shared_ptr<const void>>>(
        parts_->local_steps, WorkerBuffers::Keep(parts_->buffers, at));
  }

  const std::atomic<bool>& Cancelled() const override { return compute_.cancelled(); }

  void Interrupt(std::string reason) override {
    std::lock_guard lock(leaving_);
    if (std::exchange(interrupted_, true)) return;  // the first reason is what it leaves for
    leave_reason_ = reason;
    if (gone_ && searches_) {
      leave_untold_ = true;  // the compute thread saves what there is first
      return;
    }
    const bool begun =
        channel_->inbox.IfPassing([&] { plane_->Post(event::LeaveAsked{leave_reason_}); });
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
    channel_->link->Send(msg::Away{at_most.count(), std::move(reason)});
    return {};
  }

  Status TellCosts(Epoch epoch, std::span<const float> costs) override {
    LOCKSTEP_CHECK(plane_ != nullptr, "TellCosts before Begin");
    if (Status status = CheckCosts(costs, parts_->description.train_samples); !status) {
      return status;
    }
    costs_->Tell(epoch, costs);
    return {};
  }

  // A unit's time is what computing it takes.
  void Back() override {
    if (!away_since_) return;
    const Duration spent = MonotonicNow() - *std::exchange(away_since_, std::nullopt);
    pacer_->LeaveOut(spent);
    run_watch_.LeaveOut(spent);
    channel_->link->Send(msg::Back{});
  }

  // Before anything that this thread reports later, on the same channel.
  void Stop(std::string reason) override {
    channel_->link->Send(msg::StopAsked{std::move(reason)});
  }

 private:
  // Those of the options that speak of this worker, one a line.
  std::string OwnSlowdowns() const {
    std::string slowdowns;
    for (const SlowdownSpec& spec : options_.slowdowns) {
      if (AppliesTo(spec, self().worker)) slowdowns += ToString(spec) + "\n";
    }
    return slowdowns;
  }

  std::function<msg::RunInHand()> RunInHand() const {
    return [this] { return run_watch_.InHand(); };
  }

  // Where the next coordinator may be.
  std::vector<std::string> Addresses() {
    std::lock_guard lock(standbys_mutex_);
    std::vector<std::string> addresses = standbys_;
    for (const std::string& known : {options_.coordinator, coordinator_}) {
      std::erase(addresses, known);
      addresses.push_back(known);
    }
    return addresses;
  }
  void SetStandbys(std::vector<std::string> addresses) {
    std::lock_guard lock(standbys_mutex_);
    standbys_ = std::move(addresses);
  }

  // True: there is something else to do than to look once more.
  bool LookForCoordinator(const std::string& lost) {
    const Duration patience = CoordinatorPatience(config_);
    if (!search_ && patience > Duration{}) {
      search_.emplace(options_, Addresses(), welcome_, patience, lost, compute_, RunInHand());
    }
    const Error none{ErrorCode::kUnavailable, lost};
    const Result<bool> found = search_ ? search_->Look() : Result<bool>(none);
    const std::string why_not = found && !*found ? WhyNobodyComes() : std::string();
    if (found && !*found && why_not.empty()) return false;
    if (!found) given_up_ = found.error().message;
    if (!why_not.empty()) given_up_ = lost + "; " + why_not;
    compute_.ExpectDetached();
    plane_->Post(event::CoordinatorFound{given_up_
                                             ? DecidedInJournal(welcome_.run_dir, welcome_.run_id)
                                             : search_->found().welcome.decided});
    return true;
  }

  // Before the time is over; empty: somebody may come.
  std::string WhyNobodyComes() {
    std::lock_guard lock(leaving_);
    if (interrupted_) return leave_reason_;
    if (EndOfJob(welcome_.run_dir, welcome_.run_id) != JobEnd::kUnknown) {
      return "the job has ended without this worker";
    }
    return NobodyComes(welcome_.run_dir) ? "its launcher starts no other one" : "";
  }

  // No coordinator took over, and the core of the one before has said its last word.
  void SaveAndEnd(const action::Detached& detached) {
    channel_->inbox.Stop();
    plane_.reset();
    {
      std::lock_guard lock(leaving_);
      leave_untold_ = false;
    }
    search_.reset();
    // The rescue file becomes a checkpoint.
    if (residual_files_ && detached.held && detached.held->next > RoundId(0)) {
      residual_files_->Due(RoundId(detached.held->next.value - 1));
      contribution_->OnEnd(detached.applied, detached.copied);
    }
    const std::string saved = SaveParameters(config_, welcome_, *parts_, detached);
    compute_.End({.reason = fmt::format("{}; {}", *std::exchange(given_up_, std::nullopt), saved),
                  .failed = true,
                  .not_final = "the coordinator was lost"});
  }

  // The core of the coordinator before has said its last word.
  void GoOnWith(const action::Detached& detached) {
    if (given_up_) return SaveAndEnd(detached);
    CoordinatorSearch::Found next = search_->Take();
    search_.reset();
    spdlog::info("the coordinator of term {} takes over: {}", next.welcome.term,
                 detached.held
                     ? fmt::format("this worker holds the parameters before round {}{}",
                                   detached.held->next, OfShards(detached.shards))
                     : fmt::format("this worker holds no parameters ({})", detached.lack));
    channel_->inbox.Stop();
    plane_.reset();
    std::unique_ptr<CoordinatorChannel> before;
    {
      std::lock_guard lock(leaving_);
      before = std::exchange(channel_, std::move(next.channel));
    }
    before.reset();
    gone_ = false;
    compute_.Reset();
    parts_->buffers->ForgetRegions();
    parts_->buffers->ForgetSnapshots();
    // The same coordinator, which has given this worker up while it was stopped, believes nothing.
    const bool same = next.welcome.term == welcome_.term;
    welcome_ = std::move(next.welcome);
    coordinator_ = next.address;
    SetStandbys(welcome_.standbys);
    // An end that the core before has shown may not have come to the program.
    action::Detached kept = detached;
    kept.epochs_seen.next = next_epoch_;
    if (same) {
      kept.held.reset();
      kept.shards.clear();
    }
    // What compression has kept back stays with parameters that stay (worker/memory/residual.h).
    contribution_->OnNewCoordinator(kept.applied, kept.copied || !kept.held);
    if (residual_files_) residual_files_->MoveTo(PlaceOfResiduals());
    if (Status started = StartExchange(kept); !started) {
      compute_.End({.reason = started.error().message, .failed = true});
    }
  }

  Status MakePacer() {
    pacer_ = std::make_unique<Pacer>(Pacer::Floor{FromSeconds(config_.emulate.unit_time_s),
                                                  EmulatedUnitSamples(config_, welcome_.workers)},
                                     channel_->inbox.welcomed_at() - Duration(welcome_.age_ns),
                                     self().worker, welcome_.workers);
    const std::string slowdowns = OwnSlowdowns();
    if (options_.slowdowns.size() > kMaxSlowdownSpecs / 2 ||
        slowdowns.size() > kMaxSlowdownBytes / 2) {
      return Error{ErrorCode::kInvalid,
                   fmt::format("--slowdown: there are more than {}, or together they are too long",
                               kMaxSlowdownSpecs / 2)};
    }
    compute_.OnCancelled([this] { pacer_->Wake(); });
    return SetSlowdowns(slowdowns);
  }

  DataPlane::Setup MakeSetup() {
    DataPlane::Setup setup = SetupOf(config_, welcome_, options_, *parts_);
    setup.data_host =
        options_.data_host.empty() ? channel_->link->local_address() : options_.data_host;
    setup.network = channel_->link->network();
    searches_ = CoordinatorPatience(config_) > Duration{} || config_.checkpoint.rescue;
    setup.core.reattaches = searches_;
    if (residual_files_) {
      setup.checkpoint_due = [this](RoundId round) { residual_files_->Due(round); };
      setup.started_from = [this](RoundId round) { residual_files_->StartedFrom(round); };
    }
    setup.unfit = [this](const std::string& reason) {
      // The reason first: once this worker's connections end, others report that it is not reached.
      channel_->link->Send(msg::Leave{reason}, Guarded([this, reason] {
                             compute_.End({.reason = reason, .failed = true, .unfit = true});
                           }));
    };
    setup.to_coordinator = [this](msg::FromWorker message, std::function<void()> sent) {
      channel_->link->Send(std::move(message), Guarded(std::move(sent)));
    };
    setup.slowdown = [this](const std::string& specs) {
      if (Status status = SetSlowdowns(specs); !status.ok())
        spdlog::warn("{}", status.error().message);
    };
    return setup;
  }

  // The network thread may still hold what the plane wants to be told of when the plane has ended.
  std::function<void()> Guarded(std::function<void()> sent) {
    if (!sent) return nullptr;
    return [inbox = &channel_->inbox, sent = std::move(sent)] { inbox->IfPassing(sent); };
  }

  Status SetSlowdowns(const std::string& lines) {
    auto specs = ParseSlowdownLines(lines);
    if (!specs) return specs.error();
    pacer_->SetSlowdowns(*std::move(specs));
    return {};
  }

  // Before whoever trains tells why the job has ended for it: that is the last line.
  void TellFigures() {
    if (early_.parts > 0) spdlog::info("{}", early_.Text(parts_->description));
    parts_->buffers->NoteAccount();
    if (options_.on_memory_peak) options_.on_memory_peak(parts_->buffers->peak());
    spdlog::info(
        "most memory of the exchange: {}",
        Describe(parts_->buffers->peak(), parts_->description.parameter_count * sizeof(float)));
  }

  // The inbox is locked.
  void Deliver(msg::ToWorker message) {
    // Answered by the channel.
    if (std::holds_alternative<msg::Ping>(message)) return;
    if (auto* standbys = std::get_if<msg::Standbys>(&message)) {
      return SetStandbys(std::move(standbys->addresses));
    }
    if (const auto* refuse = std::get_if<msg::Refuse>(&message)) {
      compute_.End({.reason = WordsOf(*refuse), .failed = true, .unfit = !refuse->try_again});
      run_watch_.PutOut(refuse->reason, FromSeconds(config_.liveness.timeout_s), options_.on_hung);
    }
    if (const auto* commit = std::get_if<msg::Commit>(&message)) compute_.Committed(*commit);
    if (const auto* sums = std::get_if<msg::TakeSums>(&message)) compute_.Committed(sums->commit);
    plane_->Post(event::FromCoordinator{std::move(message)});
  }

  void Collect() {
    if (!parts_->description.collect) return;
    parts_->description.collect({contribution_->gradient(), parts_->description.parameter_count});
  }

  static Work NoWork() {
    Work none;
    none.kind = Work::Kind::kNone;
    return none;
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
      case ComputeQueue::Pick::Kind::kEpochEnd:
        return EpochEndWork(pick.epoch_end);
      case ComputeQueue::Pick::Kind::kEvaluate:
        return EvaluationWork(pick.chunk);
      case ComputeQueue::Pick::Kind::kNone:
      case ComputeQueue::Pick::Kind::kOrphaned:
      case ComputeQueue::Pick::Kind::kDetached:
        return NoWork();
      case ComputeQueue::Pick::Kind::kEnd:
        return EndWork(pick.ending);
    }
    return std::nullopt;
  }

  Work EndWork(Ending& ending) {
    if (parts_ && !ended_) TellFigures();
    if (!ended_ && contribution_ && ending.final_parameters) {
      contribution_->OnEnd(ending.applied, ending.copied);
    }
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
    if (parts_) {
      work.parameters = {parts_->buffers->parameters(), parts_->description.parameter_count};
    }
    return work;
  }

  // A run that is paced is not done when its arithmetic is, so neither are its buckets. With
  // reporting_ held.
  bool SealBegun() {
    if (CountsForNothing()) return false;
    if (!ends_part_ && !parts_->local_steps && !pacer_->Active()) ends_part_ = compute_.BeginSeal();
    return ends_part_;
  }

  // The run in hand is for an audit alone.
  bool CountsForNothing() const { return take_.kind == UnitQueue::TakeKind::kAudit; }
  // What comes out of the run in hand is told.
  bool Audits() const { return take_.audited || CountsForNothing(); }

  void PostAudit() {
    event::UnitAudited audited{
        .work = take_.work, .unit = audited_, .counts = !CountsForNothing(), .gradient = {}};
    if (!compute_.cancelled().load()) {
      audited.gradient = AuditGradient(parts_->buffers->memory(), contribution_->gradient(),
                                       parts_->description.parameter_count);
      audited.gradient->arithmetic = arithmetic_;
    }
    plane_->Post(std::move(audited));
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
      parts_->buckets->BeginRun();
      told_ = 0;
      if (Audits()) audited_ = pick.units.front();
      if (CountsForNothing()) {
        contribution_->BeginAudit(pick.work);
        first = true;
      } else {
        first = contribution_->BeginRun(pick.work, take_.part);
      }
    }
    float* gradient = contribution_->gradient();
    const std::uint64_t count = parts_->description.parameter_count;
    if (first && parts_->local_steps) {
      parts_->local_steps->Begin({parts_->buffers->parameters(), count}, pick.work.local_rate);
    } else if (first && !parts_->description.collect && parts_->buffers->memory().on_host()) {
      std::memset(gradient, 0, count * sizeof(float));
    }
    const Epoch epoch = pick.work.epoch;
    const auto& order = order_.Of(epoch, config_.job.seed, parts_->description.train_samples);
    costs_->OnEpoch(epoch, order);
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
    work.parameters = {pick.work.on_copy
                           ? parts_->buffers->snapshot(0, action::SnapshotKind::kCompute)
                           : parts_->buffers->parameters(),
                       count};
    if (parts_->description.collect || !parts_->buffers->memory().on_host()) PeekNext(order, &work);
    // What a work is computed with changes between two works only: while this thread is in no unit.
    work.parameters_version = take_.work;
    work.gradient = {gradient, count};
    work.first = first;
    work.tells_final = !Audits() && contribution_->GoesEarly() &&
                       (pick.work.sends_early || !contribution_->SendsGradientItself());
    sends_early_ = work.tells_final;
    if (parts_->local_steps) {
      work.parameters = parts_->local_steps->parameters();
      work.gradient = parts_->local_steps->gradient();
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
    work.parameters = {parts_->buffers->snapshot(0, action::SnapshotKind::kEvaluation),
                       parts_->description.parameter_count};
    work.parameters_version = chunk.evaluation;
    return work;
  }

  Work EpochEndWork(const action::EpochEnd& end) {
    epoch_end_shown_ = true;
    next_epoch_ = Epoch(end.epoch.value + 1);
    Work work;
    work.kind = Work::Kind::kEpochEnd;
    work.round = end.next;
    work.epoch = end.epoch;
    work.late = end.late;
    work.parameters = {parts_->buffers->parameters(), parts_->description.parameter_count};
    work.parameters_version = static_cast<std::uint32_t>(end.next.value);
    return work;
  }

  Work UpdateWork(const ProgramUpdate& update) {
    update_ = update;
    const std::uint64_t count = parts_->description.parameter_count;
    Work work;
    work.kind = Work::Kind::kUpdate;
    work.round = update.round;
    work.update = {parts_->buffers->parameters(), count};
    work.parameters = work.update;
    work.gradient = {parts_->buffers->update_gradient(), count};
    if (const std::uint32_t tensors =
            parts_->state_tensors() - (config_.exchange.rank() > 0 ? 1 : 0);
        tensors > 0) {
      work.state = {parts_->buffers->At({BufferKind::kState, 1, {}}), tensors * count};
    }
    work.learning_rate = update.learning_rate;
    work.fraction = update.fraction;
    work.update_samples = update.samples;
    work.steps = update.steps;
    work.schedule_position = update.position;
    return work;
  }

  event::PartSealed Seal(std::uint32_t work, PartIndex part) {
    if (parts_->local_steps) {
      const std::uint64_t count = parts_->description.parameter_count;
      parts_->local_steps->Seal({parts_->buffers->parameters(), count},
                                {contribution_->gradient(), count});
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
  msg::Welcome welcome_;
  std::string coordinator_ = options_.coordinator;  // that is followed
  std::mutex standbys_mutex_;
  std::vector<std::string> standbys_;  // under it: the network thread sets them
  JobConfig config_;
  std::unique_ptr<SessionParts> parts_;  // since Begin
  std::unique_ptr<Pacer> pacer_;
  // Another one takes its place where the coordinator is gone (GoOnWith).
  std::unique_ptr<CoordinatorChannel> channel_ = std::make_unique<CoordinatorChannel>(compute_);
  std::atomic<bool> gone_{false};            // the coordinator is, or its connection
  bool searches_ = false;                    // set before it may be gone
  std::optional<CoordinatorSearch> search_;  // while the coordinator is gone
  std::optional<std::string> given_up_;      // the search, and why
  std::unique_ptr<DataPlane> plane_;
  std::mutex leaving_;  // guards the next three
  bool interrupted_ = false;
  bool leave_untold_ = false;  // it was interrupted before there was anybody to tell it
  std::string leave_reason_ = kWorkerEnds;  // told where it leaves before the job's end

  // The compute thread's own.
  RunMetrics metrics_;
  // The run in hand while in_run_, from Next to Done; else the last one. While it is in hand other
  // threads may say what of it is final, so all that they look at changes under the lock only.
  std::mutex reporting_;
  UnitQueue::Take take_;
  Unit audited_;  // of the run in hand, where it is audited
  const std::string arithmetic_ = ArithmeticOf(options_.device);
  bool in_run_ = false;
  bool ends_part_ = false;  // its part is being sealed, with it
  std::uint32_t told_ = 0;  // buckets that the core knows to be final
  Early early_;
  bool sends_early_ = true;  // in the run in hand
  RunSamples run_;
  RunSamples next_run_;
  std::optional<ResidualFiles> residual_files_;
  std::optional<Contribution> contribution_;    // to which the last run added
  std::optional<action::EvaluateChunk> chunk_;  // that is being evaluated
  std::optional<ProgramUpdate> update_;         // that is being made
  std::optional<Time> away_since_;
  bool epoch_end_shown_ = false;  // since the last Next
  Epoch next_epoch_;              // those before it have ended, as the program knows
  bool ended_ = false;            // the loop knows: nothing is left to tell the coordinator
  SampleOrder order_;
  std::optional<EpochCosts> costs_;  // from Begin on
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
