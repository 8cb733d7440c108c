#include "coordinator/core/beginning.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "base/sometimes.h"
#include "coordinator/core/resume_rules.h"
#include "coordinator/membership/admission.h"
#include "coordinator/round/planner.h"

namespace lockstep::coordinator {

std::optional<std::string> Beginning::WhyNotToLead() const {
  const Member* beyond = job_->start.journal_followed ? reattachment_.Beyond() : nullptr;
  if (beyond == nullptr) return std::nullopt;
  return fmt::format(
      "worker {} holds the parameters before round {}, and the journal that this standby has "
      "followed ends before round {}: it is not complete, so this coordinator does not lead",
      beyond->id.worker, beyond->ready.held->next, job_->start.journal.back().state.next_round);
}

std::optional<Totals> Beginning::ChooseState() {
  std::optional<Totals> totals;
  if (reattachment_.begun_before()) totals = ChooseHeld();
  if (job_->failure()) return std::nullopt;
  for (const Member& member : job_->members.all()) {
    if (!member.connected() || member.state != MemberState::kForming) continue;
    if (job_->resumed() && held_ == nullptr) streams_->Begin(member);
  }
  if (!job_->resumed() && job_->agreed().own_parameters) initial_broadcast_->Begin();
  return totals;
}

// Of the newest entry nobody may be left who holds it: then it is an older one, whose rounds are
// the last ones, or the checkpoint.
std::optional<Totals> Beginning::ChooseHeld() {
  held_ = reattachment_.Choose();
  if (held_ == nullptr && !job_->start.resume) {
    if (std::optional<Totals> totals = BeginAnew()) return totals;
    job_->Fail(fmt::format("{} the parameters of the job before, and no checkpoint was written",
                           NobodyHolds()));
    return std::nullopt;
  }
  if (held_ == nullptr) {
    Sometimes<"reattachment: from the checkpoint, as nobody holds an entry">();
    job_->Log(LogLevel::kWarning,
              "{} the parameters of the job before: it goes on from its checkpoint{}",
              NobodyHolds(),
              job_->saved_round() ? fmt::format(" after round {}", *job_->saved_round()) : "");
  }
  const JobState& state = held_ != nullptr ? held_->state : *job_->start.resume;
  if (job_->resumed()->next_round != state.next_round) cut_to_ = state;
  job_->resumed.Write() = state;
  return state.totals;
}

// Nobody holds anything of a job that had committed one round at most: all begin with the seed's
// parameters once more. Parameters that a worker has drawn itself are lost.
std::optional<Totals> Beginning::BeginAnew() {
  const auto& journal = job_->start.journal;
  const JournalEntry& first = journal.front();
  if (first.state.next_round != RoundId(0) || journal.back().state.next_round > RoundId(1)) {
    return std::nullopt;
  }
  if (!Admission::BeginAlikeAnew(job_)) return std::nullopt;
  Sometimes<"reattachment: from the seed, as nobody holds an entry">();
  job_->Log(LogLevel::kWarning, "{} the parameters of the job before: it begins anew",
            NobodyHolds());
  if (job_->resumed()->next_round != RoundId(0)) cut_to_ = first.state;
  job_->resumed.Write().reset();
  return first.state.totals;
}

const char* Beginning::NobodyHolds() const {
  return job_->sharded() ? "the workers together do not hold" : "no worker holds";
}

// With a checkpoint, or one worker's parameters: once all have them. All that were formed are live
// from now on, and have the same parameters.
void Beginning::StartRounds() {
  if (job_->failure() || rounds_->begun() || streams_->busy() || initial_broadcast_->busy()) return;
  std::uint32_t count = 0;
  for (Member& member : job_->members.all()) {
    if (!member.connected() || member.state != MemberState::kForming) continue;
    if (held_ != nullptr && !reattachment_.Holds(member)) continue;
    job_->members.SetState(member, MemberState::kLive, job_->now());
    ++count;
  }
  if (count == 0) return job_->Fail("all workers left before the first round");
  const std::uint32_t units = UnitsPerRound(job_->start, job_->policy(), LeastBound(job_->members));
  const std::uint32_t batch = job_->start.config.job.global_batch;
  // The sampler goes on at the sample where the checkpoint was taken; its round numbers go on, too,
  // so that rounds.jsonl is one sequence over all runs.
  if (job_->resumed()) {
    const JobState& state = *job_->resumed();
    const StateSource source = held_ != nullptr ? StateSource::kHeld : StateSource::kCheckpoint;
    joining_->OnBegin(state.next_round, state.next_round == RoundId(0) ? FirstOnceMore() : source);
    if (held_ != nullptr && job_->sharded()) rounds_->GoOnWith(reattachment_.Holders());
    const bool at_end = IsAtEnd(state, job_->start.config.job);
    rounds_->Begin(Sampler(state.sampler, batch, units), state.next_round, state.updates, source,
                   at_end);
    notes_->OnBegin(state);
    if (held_ != nullptr) TakeInOthers(count);
    if (at_end) EndAtOnce(state);
  } else {
    const StateSource source =
        initial_broadcast_->used() ? StateSource::kGiven : StateSource::kSeed;
    joining_->OnBegin(RoundId(0), source);
    const Sampler sampler(job_->agreed().train_samples, batch, units);
    rounds_->Begin(sampler, RoundId(0), 0, source);
    notes_->OnBegin(checkpointer_->StateBefore(RoundId(0), 0, sampler.State()));
    WarnOfNoCheckpoint();
  }
  // Behind the note, and not while the checkpoint is sent: until the journal says that the job went
  // on from here, its entries are of rounds whose records the next coordinator looks for.
  if (cut_to_) job_->Emit(CutRecords{*std::exchange(cut_to_, std::nullopt)});
}

// The round that was planned for those that begin comes to nothing.
void Beginning::EndAtOnce(const JobState& state) {
  const RoundId last(state.next_round.value - 1);
  if (held_ == nullptr) {
    Sometimes<"resume: from the job's end">();
    job_->Log(LogLevel::kInfo,
              "the checkpoint after round {} is the job's last one: the workers have its "
              "parameters, and the job ends",
              last);
  } else {
    Sometimes<"reattachment: from the job's end">();
    job_->Log(LogLevel::kInfo, "round {} was the job's last one, and the job ends", last);
    last_held_ = LastHeld{state, rounds_->JoinPlan()};
    last_held_->plan.assignments.clear();
    // Workers that copy that state are told before the planned round is given up.
    joining_->Advance();
  }
  rounds_->StopSoon(job_->now());
}

bool Beginning::NothingIsLeft() const {
  if (job_->start.journal.empty() || !job_->saved_round()) return false;
  const JobState& state = job_->start.journal.back().state;
  return IsAtEnd(state, job_->start.config.job) && job_->saved_round()->Next() == state.next_round;
}

// The job goes on from before its first round, of which nobody copies the state: others get it as
// in a new job.
StateSource Beginning::FirstOnceMore() {
  const bool given = std::ranges::any_of(job_->members.all(), [](const Member& member) {
    return member.live() && member.ready.own_parameters;
  });
  if (given) initial_broadcast_->GoOnWithHolders();
  return given ? StateSource::kGiven : StateSource::kSeed;
}

// Members whose parameters are not those that the job goes on from copy them.
void Beginning::TakeInOthers(std::uint32_t holders) {
  std::uint32_t others = 0;
  for (const Member& member : job_->members.all()) {
    if (!member.connected() || member.state != MemberState::kForming) continue;
    joining_->TakeIn(member);
    ++others;
  }
  job_->Log(LogLevel::kInfo, "{}", reattachment_.Words(holders, others));
}

// A user who wants checkpoints only at the end has said so.
void Beginning::WarnOfNoCheckpoint() {
  const JobSection& job = job_->start.config.job;
  const CheckpointSection& checkpoint = job_->start.config.checkpoint;
  if (checkpoint.every_rounds == 0 && checkpoint.every_epochs == 0) return;
  if (checkpoint.every_s > 0) return;
  constexpr std::uint64_t kNone = std::numeric_limits<std::uint64_t>::max();
  const std::uint64_t in_epoch =
      (job_->agreed().train_samples + job.global_batch - 1) / job.global_batch;
  const std::uint64_t epochs = job.epochs == 0 && job.rounds == 0 ? 1 : job.epochs;
  const std::uint64_t rounds =
      std::min(job.rounds > 0 ? job.rounds : kNone, epochs > 0 ? epochs * in_epoch : kNone);
  const std::uint64_t first =
      std::min(checkpoint.every_rounds > 0 ? checkpoint.every_rounds : kNone,
               checkpoint.every_epochs > 0 ? checkpoint.every_epochs * in_epoch : kNone);
  if (rounds < 2 || first < rounds) return;
  job_->Log(LogLevel::kWarning,
            "this job of {} rounds writes no checkpoint before its end, so if it fails it starts "
            "anew: set checkpoint.every_rounds, for example to {}",
            rounds, std::max<std::uint64_t>(rounds / 10, 1));
}

}  // namespace lockstep::coordinator
