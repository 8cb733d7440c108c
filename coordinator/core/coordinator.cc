#include "coordinator/core/coordinator.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>
#include <variant>

#include "base/check.h"
#include "base/compatibility.h"
#include "base/options.h"
#include "base/overloaded.h"
#include "base/schedule.h"
#include "base/sometimes.h"
#include "coordinator/core/from_round.h"
#include "coordinator/core/resume_rules.h"
#include "policies/registry.h"

// Decides which part gets which event, in which order the parts act, and what a decision about a
// round means to the others. The parts make the decisions: core/ (evaluation, checkpoints, the
// end), membership/ (who is in), round/ (what a round is).
namespace lockstep::coordinator {
namespace {

// A timer that comes later than this means that this process was stopped, or starved. It is well
// below the shortest deadline, so that no such gap is taken for a member's silence.
constexpr Duration kGap = std::chrono::milliseconds(100);
constexpr Duration kWorthAWarning = std::chrono::seconds(1);
// After a gap: what has arrived meanwhile is read before anybody is judged.
constexpr Duration kReading = std::chrono::milliseconds(50);
// The same, for the ends of connections: whoever closed one meanwhile has waited in vain.
constexpr Duration kEndsComeIn = std::chrono::seconds(1);
// The most replicas of all shards together: each map names them.
constexpr std::uint64_t kMostHolders = 65536;

}  // namespace

// All that a config can be wrong about is said here, before anybody connects.
Result<std::unique_ptr<Coordinator>> Coordinator::Make(StartParameters parameters) {
  const auto invalid = [](std::string text) { return Error{ErrorCode::kInvalid, std::move(text)}; };
  const JobSection& job = parameters.config.job;
  if (parameters.workers == 0) return invalid("workers must be at least 1");
  if (job.global_batch == 0) return invalid("job.global_batch must be at least 1");
  if (job.units > job.global_batch) {
    return invalid(fmt::format("job.units = {}: a unit has at least one sample, and there are {}",
                               job.units, job.global_batch));
  }
  if (parameters.config.liveness.timeout_s <= 0)
    return invalid("liveness.timeout must be positive");
  if (lockstep::Status status = CheckSchedule(parameters.config.schedule); !status) {
    return status.error();
  }
  const std::uint32_t computing = parameters.ComputingOf(parameters.BeginWith());
  auto policy = policies::MakePolicy(parameters.config.policy, computing, parameters.plugin);
  if (!policy) return policy.error();
  const Traits traits = {
      .policy = policies::TraitsOf(*policy, parameters.config.policy.name),
      .workers = parameters.workers,
  };
  if (const auto fits = CheckTogether(parameters.config, traits); !fits) return fits.error();
  const std::uint32_t replicas = parameters.config.optimizer.replicas;
  if (parameters.config.optimizer.Shards(parameters.workers) > 0 &&
      std::uint64_t{replicas} * parameters.workers > kMostHolders) {
    return invalid(
        fmt::format("optimizer.replicas = {} with --workers {}: their product must be at most {}",
                    replicas, parameters.workers, kMostHolders));
  }
  if (const std::optional<JobState> newest = NewestState(parameters)) {
    const JobState& state = *newest;
    if (lockstep::Status may = CheckResume(state, parameters.config); !may) return may.error();
  }
  const std::uint32_t min_workers =
      job.min_workers > 0 ? job.min_workers : policies::DefaultMinWorkers(*policy, computing);
  if (min_workers > parameters.workers) {
    return invalid(fmt::format("job.min_workers = {} is more than the {} workers of the job",
                               min_workers, parameters.workers));
  }
  return std::unique_ptr<Coordinator>(
      new Coordinator(std::move(parameters), std::move(*policy), min_workers));
}

Coordinator::Coordinator(StartParameters start, policies::Policy policy, std::uint32_t min_workers)
    : job_(std::move(start), std::move(policy), min_workers),
      admission_(&job_),
      formation_(&job_),
      rounds_(&job_),
      streams_(&job_),
      initial_broadcast_(&job_),
      joining_(&job_, &rounds_, &streams_, &initial_broadcast_),
      absences_(&job_, &rounds_, &joining_),
      relinking_(&job_),
      liveness_(&job_),
      evaluation_(&job_),
      checkpointer_(&job_),
      ending_(&job_, &rounds_, &evaluation_, &checkpointer_),
      slowdowns_(&job_),
      notes_(&job_, &rounds_, &checkpointer_, &slowdowns_),
      beginning_(&job_, &rounds_, &streams_, &initial_broadcast_, &joining_, &checkpointer_,
                 &notes_),
      draining_(&job_, &rounds_),
      report_(&job_,
              {&formation_, &rounds_, &initial_broadcast_, &evaluation_, &ending_, &slowdowns_}) {
  if (job_.resumed()) evaluation_.GoOnFrom(job_.start.evaluated);
  if (!job_.start.journal.empty()) {
    slowdowns_.GoOnFrom(job_.start.journal.back().slowdowns);
    notes_.SetPolicy(job_.start.journal.back().policy);
  }
}

// A gap between the timer and the next event is time that this process did not have. It is taken
// out of the clock of all parts. A stop of the coordinator looks like everybody's silence, so
// messages that arrived meanwhile are read before anybody is judged.
void Coordinator::Step(Time now, Event event, Actions* out) {
  if (finished()) return;
  job_.out.Write() = out;
  if (timer_ != kNever && now > timer_ + kGap) {
    const Duration gap = now - timer_;
    job_.stopped.Write() += gap;
    reading_until_ = now - job_.stopped() + kReading;
    std::string follows;
    // Its last ping may have been due when it stopped.
    if (gap >= job_.timeout / 2) {
      Sometimes<"stop: the coordinator stood still for long">();
      overslept_ = gap;
      overslept_until_ = now - job_.stopped() + kEndsComeIn;
      follows = fmt::format("; workers wait {} for it (liveness.timeout) and may have left",
                            FormatDurationSeconds(Seconds(job_.timeout)));
    }
    const bool warns = gap >= kWorthAWarning || !follows.empty();
    job_.Log(warns ? LogLevel::kWarning : LogLevel::kDebug,
             "the coordinator itself stood still for {:.1f} s{}", Seconds(gap), follows);
  }
  const Time logical = now - job_.stopped();
  LOCKSTEP_CHECK(logical >= job_.now() || job_.now() == Time{}, "time goes back");
  job_.now.Write() = logical;
  Dispatch(std::move(event));
  AdvanceAll();
  // The requests of one part to another have been carried out, unless nobody is judged now.
  LOCKSTEP_CHECK(finished() || job_.leaving().empty() || job_.now() < reading_until_,
                 "{} members that are to leave are still there", job_.leaving().size());
  if (!finished()) rounds_.CheckSequence();
  const Time deadline = finished() ? kNever : NextDeadline();
  const Time timer = deadline == kNever ? kNever : std::max(deadline + job_.stopped(), now);
  if (!finished() && timer != timer_) out->push_back(SetTimer{timer});
  timer_ = timer;
}

// Passes over all parts, and again while a member was evicted or let in: another part may have
// waited for that, as for a quorum. The order is that of a job: who is in, what rounds do, who
// joins at them, what ends.
void Coordinator::AdvanceAll() {
  if (job_.now() < reading_until_) return;
  const OpenRound* open = rounds_.open();
  if (liveness_.Tick(open == nullptr ? nullptr : &open->work(), rounds_.first_not_closed())) {
    admission_.Tick();
    evaluation_.Tick();
    checkpointer_.Tick();
    streams_.Tick();
    initial_broadcast_.Tick();
  }
  bool joined = false;
  do {
    // A member that is out leaves all parts before any of them decides something.
    TakeOut();
    if (job_.phase() == Phase::kFinished) return;
    if (!job_.failure() && AwaitsLevel()) return;
    if (job_.phase() == Phase::kFinished) return;
    if (job_.failure()) return ending_.Finish(JobOutcome::kFailed, *job_.failure());
    if (formation_.Advance()) BeginTraining();
    if (beginning_.NothingIsLeft() && formation_.TooFewCame()) {
      // Those that are not here have ended already, since they were told of the end.
      Sometimes<"reattachment: nothing is left to do">();
      return ending_.Finish(JobOutcome::kCompleted, "all rounds are done");
    }
    if (job_.phase() == Phase::kTraining && !rounds_.begun()) beginning_.StartRounds();
    // A link that is connected again may make an eviction needless, so links come before the
    // rounds, which judge who reaches whom. Newcomers join at the rounds that were decided.
    relinking_.Advance();
    absences_.Advance();
    AdvanceRounds();
    joined = joining_.Advance();
    draining_.Advance();
    EndIfShort();
    if (rounds_.done() && job_.phase() == Phase::kTraining) {
      initial_broadcast_.End();
      if (const auto& held = beginning_.last_held()) ending_.GoOnFrom(held->state, held->plan);
      ending_.Begin(stop_outcome_, stopping_, stopping_ ? stop_reason_ : "all rounds are done");
    }
    ending_.Advance();
    if (job_.policy().threw && !job_.policy().threw->empty()) {
      job_.Fail(fmt::format("policy {} threw: {}", job_.policy().name, *job_.policy().threw));
    }
  } while (joined || !job_.leaving().empty() || !job_.behind().empty() ||
           (job_.failure() && job_.phase() != Phase::kFinished));
}

// A round's way through its decisions. This is the place where a decision changes other parts
// (evaluation, checkpoint, policy): between two calls of the pipeline, never within one.
void Coordinator::AdvanceRounds() {
  for (;;) {
    Decision decision = rounds_.Decide();
    switch (decision.kind) {
      case Decision::Kind::kWait:
        return;
      case Decision::Kind::kCommit: {
        // Commit(r + 1) closes r. Nothing is known yet of the round that opens with it.
        if (const CommittedRound* last = rounds_.committed(); last != nullptr && !last->closed()) {
          CloseRound();
        }
        auto draft = rounds_.DraftCommit(std::move(decision.verdict));
        if (!draft) return job_.Fail(draft.error().message);
        return Commit(*std::move(draft));
      }
      case Decision::Kind::kClose:
        CloseRound();
        break;
      // The round after it is planned again; then the rounds are asked again.
      case Decision::Kind::kNextAttempt: {
        auto draft = rounds_.DraftNextAttempt();
        if (!draft) return job_.Fail(draft.error().message);
        Commit(*std::move(draft));
        break;
      }
      case Decision::Kind::kOpenAgain:
        rounds_.OpenAgain();
        break;
      // The open round was abandoned, so its committed one has become the last.
      case Decision::Kind::kSendAgain:
        ending_.SendLastAgain();
        break;
    }
  }
}

// Decides between the draft and the commit: who evaluates, who writes a checkpoint, and which
// policy plans the next round.
void Coordinator::Commit(CommitDraft draft) {
  msg::Commit& commit = draft.commit;
  LOCKSTEP_CHECK(!commit.next, "round {} was planned before its policy was known", commit.round);
  // Both ride on the commit: a member must know before it applies the round that its state after it
  // is wanted, since with the next one that is gone.
  commit.evaluation =
      evaluation_.AtCommit(commit.round, commit.epoch, draft.epoch_ended, draft.last && !stopping_);
  commit.checkpoint_writer =
      checkpointer_.AtCommit(commit, draft.after, draft.epoch_ended, draft.last);
  if (initial_broadcast_.used()) initial_broadcast_.End();
  const bool last = draft.last;
  if (!last) ReplacePolicy();
  SamplerState after = draft.after.State();
  rounds_.MakeCommit(std::move(draft));
  // A job that was asked to end would not know of that.
  if (!last || !stopping_) notes_.OnCommit(std::move(after), last);
}

// The shell hears of it before other parts: its record comes before any file about it.
void Coordinator::CloseRound() {
  const ClosedRound closed = rounds_.CloseCommitted();
  const auto record = std::make_shared<const RoundRecord>(MakeRecord(job_, closed));
  NoteRound(closed, *record, report_.times_of_data(), &job_.closed.Write(), &job_.members);
  LOCKSTEP_CHECK(record->samples > 0, "round {} is closed over nothing", record->round);
  job_.Emit(RoundClosed{record, job_.closed().totals});
  checkpointer_.OnClosed(record->round);
  evaluation_.OnClosed(record->round);
  left_over_it_ = false;
  report_.OnClosed(*record, closed.round.work().knows_costs());
}

// Takes out first the members that stay connected and only leave the rounds. This may evict others,
// which are added at the end; nobody is taken out twice, since Find ignores leaving members.
void Coordinator::TakeOut() {
  while (const auto behind = job_.TakeBehind()) {
    Member& slot = job_.members.at(behind->member.worker);
    LOCKSTEP_CHECK(slot.id != behind->member || !slot.live(), "worker {} is put behind and live",
                   behind->member.worker);
    if (slot.id == behind->member) slot.out_because = behind->reason;
    rounds_.OnOut(behind->member, behind->reason);
    evaluation_.OnOut(behind->member);
    checkpointer_.OnOut(behind->member,
                        slot.id == behind->member && slot.state == MemberState::kBehindInDoubt);
  }
  while (const auto leaving = job_.TakeLeaving()) TakeOut(*leaving);
}

// When the last live member is gone, the job may have lost nothing. A member that copied from it
// may be level already, or one that was put behind for its silence may have applied the round; its
// message is on the way. If all that is left is somebody who has the rounds before, only the last
// one is lost, and that is computed again.
bool Coordinator::AwaitsLevel() {
  if (job_.phase() != Phase::kTraining || !rounds_.begun() || job_.members.CountLive() > 0) {
    nobody_live_since_.reset();
    return false;
  }
  // With replicas, a member that was behind has given up its shards.
  const bool may_return = !rounds_.replicas().any();
  if (may_return && joining_.ReadmitApplied()) {
    nobody_live_since_.reset();
    return false;
  }
  if (!nobody_live_since_) nobody_live_since_ = job_.now();
  if (may_return) joining_.AskBehind();
  const bool hope = may_return && (joining_.MayBecomeLevel() || joining_.MayReadmit());
  if (hope && job_.now() < *nobody_live_since_ + job_.bounds.Survivor()) return true;
  if (may_return && joining_.ReadmitDenied()) {
    nobody_live_since_.reset();
    return false;
  }
  if (left_over_it_ && MayHandOver()) {
    Sometimes<"stop: all have left, and it hands the job over">();
    ending_.HandOver(
        fmt::format("the coordinator itself stood still for {:.1f} s, and its workers "
                    "look for the next one",
                    Seconds(overslept_)));
    return false;
  }
  const std::string resume = job_.ResumeText();
  job_.Fail(left_over_it_
                ? fmt::format("no worker holds the parameters any more: the coordinator itself "
                              "stood still for {:.1f} s, and workers wait {} for it "
                              "(liveness.timeout){}",
                              Seconds(overslept_), FormatDurationSeconds(Seconds(job_.timeout)),
                              resume.empty() ? "; no checkpoint was written" : resume)
                : fmt::format("no worker holds the parameters any more; missing: {}{}",
                              MissingWorkers(job_), resume));
  return false;
}

// The workers have kept what they held, and the journal says what that is.
bool Coordinator::MayHandOver() const {
  const JobConfig& config = job_.start.config;
  // No entry tells of the last commit.
  const CommittedRound* last = rounds_.committed();
  const JournalEntry* noted = notes_.last();
  if (noted == nullptr || (last != nullptr && noted->state.next_round <= last->round())) {
    return false;
  }
  return config.job.coordinator_timeout_s != 0 && !stopping_;
}

// Its slot is freed before the parts hear of it, so that no part counts it any more.
void Coordinator::TakeOut(const Leaving& leaving) {
  Member& member = job_.members.at(leaving.member.worker);
  LOCKSTEP_CHECK(member.id == leaving.member, "worker {} leaves and its slot has been taken",
                 leaving.member.worker);
  const MemberState state = member.state;
  // At the end everybody goes.
  job_.Log(job_.phase() == Phase::kEnding ? LogLevel::kDebug : LogLevel::kWarning,
           "worker {} is out: {}", member.id.worker, leaving.reason);
  // It is told, so that its own log has the reason. At the end it may have heard the job's last
  // word already.
  const bool notify = leaving.kind != Leaving::Kind::kByItself && job_.phase() != Phase::kEnding;
  const bool refused = leaving.kind == Leaving::Kind::kRefused;
  const bool connected = leaving.kind != Leaving::Kind::kDisconnected;
  if (refused || (notify && connected)) {
    job_.Emit(Send{{member.connection},
                   std::make_shared<const msg::ToWorker>(msg::Refuse{leaving.reason, !refused})});
  }
  if (connected) job_.Emit(Close{member.connection, leaving.reason});
  job_.members.Free(member, job_.now());
  member.out_because = leaving.reason;
  streams_.OnOut(leaving.member);
  initial_broadcast_.OnOut(leaving.member);
  // The others do not know a member that was not let in.
  if (state != MemberState::kJoining && state != MemberState::kReady) {
    std::vector<MemberId> others;
    for (const Member& other : job_.members.all()) {
      if (other.connected() && other.state != MemberState::kJoining) others.push_back(other.id);
    }
    job_.Send(others, msg::MemberLeft{leaving.member, leaving.reason});
    formation_.OnOut(leaving.member);
  }
  // Parts that know its connections come first, then the rounds, which may begin a fail-over, then
  // the parts that give its work to others.
  joining_.OnOut(leaving.member);
  relinking_.OnOut(leaving.member);
  rounds_.OnOut(leaving.member, leaving.reason);
  evaluation_.OnOut(leaving.member);
  checkpointer_.OnOut(leaving.member, leaving.kind == Leaving::Kind::kBroken);
  report_.OnOut(leaving.member.worker);
}

// The measured paths bound the first exchange, of which nothing is known yet.
void Coordinator::BeginTraining() {
  LOCKSTEP_CHECK(job_.agreed().settled && !job_.transport().empty(),
                 "rounds begin before all agree");
  job_.phase.Enter(Phase::kTraining);
  job_.bounds.NotePaths(job_.parameter_bytes(), job_.members.SlowestPath());
  job_.Log(LogLevel::kInfo, "{} workers are connected over {}",
           job_.members.Count(MemberState::kForming), job_.transport());
  const std::uint32_t connections = job_.start.config.exchange.connections;
  if (job_.transport() == "ucx" && connections > 1) {
    job_.Log(LogLevel::kWarning,
             "exchange.connections = {} does not apply: UCX chooses its connections itself",
             connections);
  }
  NoteBrokenLinks();
  if (std::optional<std::string> why = beginning_.WhyNotToLead()) {
    job_.phase.Enter(Phase::kFinished);
    return job_.Emit(Abandon{*std::move(why)});
  }
  if (const std::optional<Totals> totals = beginning_.ChooseState()) {
    job_.closed.Write().totals = *totals;
  }
  beginning_.StartRounds();
}

// As if both ends had reported the break now: the rounds do without such a link, and it is tried
// again.
void Coordinator::NoteBrokenLinks() {
  for (const Formation::Broken& pair : formation_.BrokenPairs()) {
    for (const auto& [from, to] : {std::pair(pair.a, pair.b), std::pair(pair.b, pair.a)}) {
      Member* member = job_.members.Find(from);
      LOCKSTEP_CHECK(member != nullptr, "a link of somebody who is gone is broken");
      const msg::Unreachable report{to, pair.error};
      for (const lockstep::Status& status :
           {rounds_.OnUnreachable(*member, report), relinking_.OnUnreachable(*member, report)}) {
        LOCKSTEP_CHECK(status.ok(), "{}", status.error().message);
      }
    }
  }
}

void Coordinator::Dispatch(Event event) {
  std::visit(Overloaded{
                 [&](Connected& e) { admission_.OnConnected(e.connection, std::move(e.address)); },
                 [&](const Disconnected& e) { OnDisconnected(e); },
                 [&](Received& e) { OnReceived(std::move(e)); },
                 [](const TimerFired&) {},
                 [&](const StopRequested& e) { OnStopRequested(e); },
                 [&](const SlowdownRequested& e) { OnSlowdownRequested(e); },
                 [&](const PolicyRequested& e) { Reply(RequestPolicy(e.name)); },
                 [&](const DrainRequested& e) { Reply(draining_.Request(e.worker)); },
                 [&](const CheckpointSaved& e) { checkpointer_.OnSaved(e.round, e.error); },
                 [&](StandbysChanged& e) { admission_.OnStandbys(std::move(e.addresses)); },
             },
             event);
}

// The death of a peer is an event. One that left because nothing came from here is not to blame.
void Coordinator::OnDisconnected(const Disconnected& event) {
  if (admission_.Waits(event.connection)) return admission_.OnDisconnected(event.connection);
  Member* member = job_.members.Find(event.connection);
  if (member == nullptr) return;
  constexpr auto kDisconnected = Leaving::Kind::kDisconnected;
  if (job_.now() >= overslept_until_) return job_.Evict(*member, event.reason, kDisconnected);
  left_over_it_ = true;
  job_.Evict(
      *member,
      fmt::format("its connection ended while the coordinator itself stood still for {:.1f} s",
                  Seconds(overslept_)),
      kDisconnected);
}

// A connection is a stranger's until its Hello was accepted. A message that cannot be right ends
// it: its sender is broken or hostile, and costs the job one worker at most.
void Coordinator::OnReceived(Received event) {
  if (admission_.Waits(event.connection)) {
    if (job_.now() < overslept_until_ && rounds_.begun() && MayHandOver()) {
      Sometimes<"stop: a worker has left, and it hands the job over">();
      return admission_.PutOff(event.connection,
                               "the coordinator itself stood still, and looks who has left");
    }
    return admission_.OnFirst(event.connection, event.message);
  }
  Member* member = job_.members.Find(event.connection);
  if (member == nullptr || member->leaving) return;
  member->last_heard = job_.now();
  const lockstep::Status status = Dispatch(*member, std::move(event.message));
  if (!status) job_.BrokeProtocol(*member, status.error().message);
}

// Each message goes to the parts that use it, in the order in which they rely on each other.
lockstep::Status Coordinator::Dispatch(Member& from, msg::FromWorker message) {
  using Status = lockstep::Status;
  return std::visit(
      Overloaded{
          [](msg::Hello&) -> Status {
            return Error{ErrorCode::kInvalid, "said Hello twice"};
          },
          [&](msg::Ready& m) {
            if (Status status = admission_.OnReady(from, m); !status) return status;
            return from.leaving ? Status() : slowdowns_.OnReady(from, m.slowdowns);
          },
          [&](msg::Reached& m) {
            // Each counts separately: newcomers, links that are made again, a job that forms.
            if (Status status = joining_.OnReached(from, m); !status) return status;
            if (Status status = relinking_.OnReached(from, m); !status) return status;
            rounds_.OnReached(from, m);
            return formation_.OnReached(from, m);
          },
          [&](msg::Copied& m) {
            rounds_.OnCopied(from, m);
            checkpointer_.OnCopied(from, m);
            return joining_.OnCopied(from, m);
          },
          [&](msg::Unreachable& m) {
            joining_.OnUnreachable(from, m.peer);
            if (Status status = rounds_.OnUnreachable(from, m); !status) return status;
            return relinking_.OnUnreachable(from, m);
          },
          [&](msg::Applied& m) { return OnApplied(from, m); },
          [&](msg::CheckpointTaken& m) {
            return initial_broadcast_.used() ? initial_broadcast_.OnCheckpointTaken(from, m)
                                             : streams_.OnCheckpointTaken(from, m);
          },
          [&](msg::Leave& m) {
            job_.Evict(from, "it leaves: " + m.reason, Leaving::Kind::kByItself);
            return Status();
          },
          [&](msg::StopAsked& m) {
            OnStopAsked(from, m);
            return Status();
          },
          [&](msg::Behind& m) { return joining_.OnBehind(from, m); },
          [&](msg::Level& m) {
            Status status = joining_.OnLevel(from, m);
            if (from.live()) notes_.OnLevel(from.id.worker);
            return status;
          },
          [&](msg::EvaluationResult& m) { return evaluation_.OnEvaluationResult(from, m); },
          [&](msg::Given& m) { return initial_broadcast_.OnGiven(from, std::move(m)); },
          [&](msg::StateChunk& m) { return checkpointer_.OnStateChunk(from, std::move(m)); },
          [&](msg::ReplicaDigest& m) { return checkpointer_.OnReplicaDigest(from, m); },
          [&](msg::Final& m) { return ending_.OnFinal(from, m); },
          [&](msg::Away& m) { return absences_.OnAway(from, m); },
          [&](msg::Back& m) { return absences_.OnBack(from, m); },
          [&](msg::Pong& m) { return liveness_.OnPong(from, m); },
          [&](msg::Progress& m) { return rounds_.OnProgress(from, m); },
          [&](msg::Sealed& m) { return rounds_.OnSealed(from, m); },
          [&](msg::Receipts& m) { return rounds_.OnReceipts(from, m); },
          [&](msg::Revoked& m) { return rounds_.OnRevoked(from, m); },
          [&](msg::Published& m) { return rounds_.OnPublished(from, m); },
          [&](msg::HoldAnswer& m) { return rounds_.OnHoldAnswer(from, m); },
          [&](msg::Held& m) {
            Status status = rounds_.OnHeld(from, m);
            notes_.OnDecision();
            return status;
          },
          [&](msg::NotFinite& m) { return rounds_.OnNotFinite(from, m); },
          [&](msg::Audited& m) {
            Status status = rounds_.OnAudited(from, m);
            notes_.OnAudits();
            return status;
          },
          [&](msg::Costs& m) { return rounds_.OnCosts(from, m); },
          [](msg::Noted&) -> Status {
            return Error{ErrorCode::kInvalid, "answers as a standby does"};
          },
      },
      message);
}

// A message that repeats an earlier one, or is of a round that the member has not followed, comes
// without a snapshot to evaluate.
lockstep::Status Coordinator::OnApplied(Member& from, const msg::Applied& message) {
  from.runs = from.runs_before.With(message.runs, FromSeconds(job_.SinceStart(job_.now())));
  const RoundId before = from.next;
  if (lockstep::Status status = rounds_.OnApplied(from, message); !status) return status;
  if (from.live() && from.next > before) evaluation_.OnApplied(from, message.round);
  return {};
}

// It holds from now on, and so it does for the next coordinator.
void Coordinator::OnSlowdownRequested(const SlowdownRequested& event) {
  const Result<std::string> outcome = slowdowns_.Request(event.lines);
  if (outcome.ok() && job_.phase() == Phase::kTraining) notes_.OnSlowdowns();
  Reply(outcome);
}

// The open round is to be the last; whoever cannot wait for it asks a second time. A job that its
// program ends is ending already.
void Coordinator::OnStopRequested(const StopRequested& event) {
  const bool again = std::exchange(asked_to_stop_, true);
  if (stopping_ && !again) return;
  stopping_ = true;
  stop_outcome_ = JobOutcome::kInterrupted;
  stop_reason_ = event.reason;
  if (again || job_.phase() == Phase::kGathering || job_.phase() == Phase::kForming ||
      !rounds_.begun()) {
    return ending_.Finish(JobOutcome::kInterrupted, event.reason);
  }
  if (job_.phase() == Phase::kTraining) rounds_.StopSoon(job_.now() + job_.timeout / 2);
}

// The committed rounds are what the program wanted, so the open round does not count. All workers
// may ask for the same.
void Coordinator::OnStopAsked(const Member& from, const msg::StopAsked& message) {
  if (job_.phase() == Phase::kEnding) return;
  // This holds also while the job is being interrupted: the worker's other messages about the open
  // round are of batches that it has not computed.
  if (stopping_) {
    if (rounds_.begun()) rounds_.StopSoon(job_.now());
    return;
  }
  stopping_ = true;
  stop_outcome_ = JobOutcome::kCompleted;
  stop_reason_ = fmt::format("worker {} has ended the job: {}", from.id.worker, message.reason);
  if (!rounds_.begun()) return ending_.Finish(JobOutcome::kInterrupted, stop_reason_);
  rounds_.StopSoon(job_.now());
}

// Answers in the same step, since the caller waits.
void Coordinator::Reply(const Result<std::string>& outcome) {
  job_.Emit(outcome.ok() ? Answer{true, *outcome} : Answer{false, outcome.error().message});
}

// Takes effect at the next plan: a round is closed by the policy that planned it.
Result<std::string> Coordinator::RequestPolicy(const std::string& name) {
  PolicySection section = job_.start.config.policy;
  section.name = name;
  const std::uint32_t computing = job_.start.ComputingOf(job_.start.BeginWith());
  auto made = policies::MakePolicy(section, computing, job_.start.plugin);
  if (!made) return made.error();
  const auto kind = [](const policies::Policy& policy) { return policy.local ? "local" : ""; };
  if (const auto why = WhyKept("policy.name", kind(job_.policy()), kind(*made)); !why.empty()) {
    return Error{ErrorCode::kInvalid, fmt::format("a job with the policy {} cannot take {}: {}",
                                                  job_.policy().name, made->name, why)};
  }
  // A policy that the config could not have had from the start is refused.
  const Traits traits = {.policy = policies::TraitsOf(*made, name), .workers = job_.start.workers};
  if (const auto fits = CheckTogether(job_.start.config, traits); !fits) return fits.error();
  std::string text = made->name;
  // Of two requests between two rounds the later one counts.
  next_policy_ = std::move(*made);
  next_policy_name_ = name;
  if (!rounds_.begun()) {
    ReplacePolicy();
    return "policy " + text;
  }
  return fmt::format("policy {} from the next round that is planned on", text);
}

// Called between two rounds: the last one is committed, the next one not yet planned.
void Coordinator::ReplacePolicy() {
  if (!next_policy_) return;
  job_.Log(LogLevel::kInfo, "policy {} replaces {}", next_policy_->name, job_.policy().name);
  LOCKSTEP_CHECK(next_policy_->local == job_.policy().local,
                 "a job changes between local and other rounds");
  job_.policy.Write() = std::move(*next_policy_);
  next_policy_.reset();
  notes_.SetPolicy(next_policy_name_);
  // Rules have their own state of the round before, so the new ones begin with a plan of their own.
  // Who was enough to begin with stays enough, so that an exchange never stops the job.
  if (job_.start.config.job.min_workers > 0) return;
  job_.min_workers.Write() = std::min(
      job_.min_workers(),
      policies::DefaultMinWorkers(job_.policy(), job_.start.ComputingOf(job_.start.BeginWith())));
}

// Counted anew when the quorum was there meanwhile: the wait is one for those who never came.
void Coordinator::EndIfShort() {
  const bool waits = job_.phase() == Phase::kTraining && rounds_.begun() && !rounds_.done() &&
                     job_.members.CountPresent() < job_.min_workers();
  if (!waits) return short_since_.reset();
  if (!short_since_) short_since_ = job_.now();
  if (job_.now() < ShortUntil()) return;
  const Patience patience = job_.QuorumPatience();
  job_.Fail(fmt::format("{} of at least {} workers have been there for {} ({}); missing: {}{}",
                        job_.members.CountPresent(), job_.min_workers(),
                        FormatDurationSeconds(patience.seconds), patience.option,
                        MissingWorkers(job_), job_.ResumeText()));
}

// The time that those who are missing have to come.
Time Coordinator::ShortUntil() const {
  const double seconds = job_.QuorumPatience().seconds;
  return short_since_ && seconds > 0 ? *short_since_ + FromSeconds(seconds) : kNever;
}

// There is one timer; parts whose deadlines are long look at them at liveness' periods.
Time Coordinator::NextDeadline() const {
  if (job_.now() < reading_until_) return reading_until_;
  if (nobody_live_since_) {
    return std::min(liveness_.NextDeadline(), *nobody_live_since_ + job_.bounds.Survivor());
  }
  return std::min({liveness_.NextDeadline(), formation_.NextDeadline(), rounds_.NextDeadline(),
                   absences_.NextDeadline(), ending_.NextDeadline(), ShortUntil()});
}

// A single worker's Ready may be wrong; what a majority said, or the checkpoint, is not.
msg::Ready Coordinator::Agreed() const {
  msg::Ready agreed;
  agreed.parameter_count = job_.agreed().parameter_count;
  agreed.state_tensors = job_.agreed().state_tensors;
  agreed.tensors = job_.agreed().tensors;
  agreed.state_names = job_.agreed().state_names;
  return agreed;
}

// The members' table against a recount, the queues against their bounds, then the parts that keep
// an account: rounds, evaluation, checkpoints.
void Coordinator::CheckInvariants() const {
  if (finished()) return;
  job_.members.CheckInvariants(job_.now());
  LOCKSTEP_CHECK(
      job_.leaving().size() <= job_.members.slots() && job_.behind().size() <= job_.members.slots(),
      "I7: {} members leave and {} are put behind, of {}", job_.leaving().size(),
      job_.behind().size(), job_.members.slots());
  LOCKSTEP_CHECK(job_.min_workers() >= 1 && job_.min_workers() <= job_.start.workers,
                 "I5: a quorum of {} among {} workers", job_.min_workers(), job_.start.workers);
  // A deadline that has passed without an action would make the timer go off again and again.
  // (Those of rounds follow from bounds, which may shrink in a step to what the next one acts on.)
  LOCKSTEP_CHECK(ending_.NextDeadline() > job_.now(),
                 "a deadline of the end has passed, and nothing has come of it");
  admission_.CheckInvariants();
  formation_.CheckInvariants();
  rounds_.CheckInvariants();
  streams_.CheckInvariants();
  initial_broadcast_.CheckInvariants();
  joining_.CheckInvariants();
  absences_.CheckInvariants();
  relinking_.CheckInvariants();
  slowdowns_.CheckInvariants();
  evaluation_.CheckInvariants();
  checkpointer_.CheckInvariants();
}

}  // namespace lockstep::coordinator
