#include "coordinator/membership/absences.h"

#include <algorithm>

#include "base/check.h"

namespace lockstep::coordinator {
namespace {

// Every worker is away for a moment after each pass over the data.
constexpr Duration kWorthALine = std::chrono::seconds(1);

}  // namespace

Status Absences::OnAway(Member& from, const msg::Away& message) {
  const Duration at_most(message.at_most_ns);
  if (at_most <= Duration{} || at_most > kMostAbsence) {
    return Error{ErrorCode::kInvalid, "is away without an end"};
  }
  job_->members.SetAbsence(from, Absence{job_->now(), job_->now() + at_most, message.reason});
  from.unfinished_run.reset();
  rounds_->NoteAbsence(from);
  job_->Log(LogLevel::kDebug, "worker {} is away for at most {:g} s: {}", from.id.worker,
            Seconds(at_most), message.reason);
  return {};
}

Status Absences::OnBack(Member& from, const msg::Back& /*message*/) {
  if (!from.away()) return {};
  const Duration took = job_->now() - from.absence->since;
  job_->Log(took >= kWorthALine ? LogLevel::kInfo : LogLevel::kDebug,
            "worker {} is back after {:.1f} s: {}", from.id.worker, Seconds(took),
            from.absence->reason);
  End(from);
  return {};
}

void Absences::Advance() {
  if (job_->members.CountAway() == 0) return;
  for (Member& member : job_->members.all()) {
    if (!member.away() || job_->now() < member.absence->until) continue;
    job_->Log(LogLevel::kWarning,
              "worker {} is away for longer than the {:g} s that it said ({}): from now on it is "
              "expected to get on",
              member.id.worker, Seconds(member.absence->until - member.absence->since),
              member.absence->reason);
    End(member);
  }
}

// Its next progress is measured from here.
void Absences::End(Member& member) {
  LOCKSTEP_CHECK(member.away(), "worker {} is back and was not away", member.id.worker);
  job_->members.SetAbsence(member, std::nullopt);
  member.last_progress = job_->now();
  joining_->OnBack(member.id);
  rounds_->NoteAbsence(member);
}

Time Absences::NextDeadline() const {
  Time next = kNever;
  if (job_->members.CountAway() == 0) return next;
  for (const Member& member : job_->members.all()) {
    if (member.away()) next = std::min(next, member.absence->until);
  }
  return next;
}

void Absences::CheckInvariants() const {
  if (job_->members.CountAway() == 0) return;
  for (const Member& member : job_->members.all()) {
    if (!member.away()) continue;
    const Absence& absence = *member.absence;
    LOCKSTEP_CHECK(absence.since <= job_->now(), "worker {} goes away in time to come",
                   member.id.worker);
    LOCKSTEP_CHECK(absence.since < absence.until && absence.until - absence.since <= kMostAbsence,
                   "I6: worker {} is away without an end", member.id.worker);
    LOCKSTEP_CHECK(!member.unfinished_run, "worker {} is away and in a run", member.id.worker);
  }
}

}  // namespace lockstep::coordinator
