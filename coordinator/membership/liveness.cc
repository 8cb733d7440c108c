#include "coordinator/membership/liveness.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "base/check.h"
#include "policies/outlook.h"

namespace lockstep::coordinator {
namespace {

constexpr int kPeriods = 8;     // looks in one liveness.timeout
constexpr int kUnitTimes = 10;  // without a finished unit

std::string NoUnitFinished(Duration idle) {
  return fmt::format("no unit finished for {:.1f} s", Seconds(idle));
}

}  // namespace

Status Liveness::OnPong(Member& from, const msg::Pong& message) {
  const Time received = job_->now() + job_->stopped();
  const Time sent{Duration(message.ping_sent_ns)};
  if (message.sequence > job_->pings() || sent > received) {
    return Error{ErrorCode::kInvalid, "answers a ping that was not sent"};
  }
  // 0: it says nothing of the worker's clock.
  if (message.answered_ns != 0 && received - sent <= job_->timeout) {
    from.clock.Add(sent, received, message.answered_ns);
  }
  if (message.resident_bytes != 0) from.resident_bytes = message.resident_bytes;
  from.answered_ping = std::max(from.answered_ping, message.sequence);
  LOCKSTEP_CHECK(from.answered_ping <= job_->pings(), "worker {} has answered ping {} of {}",
                 from.id.worker, from.answered_ping, job_->pings());
  CheckRunInHand(from, message.run);
  return {};
}

bool Liveness::Tick(const RoundWork* open, RoundId closed) {
  if (job_->now() < next_) return false;
  next_ = job_->now() + job_->timeout / kPeriods;
  LOCKSTEP_CHECK(next_ > job_->now(), "liveness looks again at once");
  ping_ = !ping_;
  const Duration usual = job_->members.MedianUnitTime();
  for (Member& member : job_->members.all()) {
    if (!member.connected()) continue;
    // Reading a dataset may take longer than answering does.
    const Duration patience =
        member.state == MemberState::kJoining
            ? std::max(job_->timeout, FromSeconds(job_->start.config.job.join_timeout_s))
            : job_->timeout;
    const Duration silence = job_->now() - member.last_heard;
    LOCKSTEP_CHECK(silence >= Duration{}, "worker {} was heard in time to come", member.id.worker);
    if (silence >= patience) {
      job_->Evict(member, fmt::format("no message for {:.1f} s", Seconds(silence)));
      continue;
    }
    if (ping_) job_->Ping(member);
    if (member.live() && member.next < closed &&
        job_->now() - member.last_progress >= job_->bounds.Following()) {
      job_->Log(LogLevel::kWarning,
                "worker {} is behind: it has not applied round {}, which is closed",
                member.id.worker, member.next);
      job_->PutBehind(member, "it does not follow");
    }
    if (open != nullptr && member.live()) CheckProgress(member, *open, usual);
  }
  return true;
}

// The time for `units` in one run, after which the thread that computes them counts as hung.
Duration Liveness::PatienceWith(const Member& member, std::uint32_t units, Duration usual) const {
  const Duration unit_time = std::max(member.unit_times.mean, usual);
  if (unit_time == Duration{}) return kUnitTimes * job_->timeout;
  return std::max(job_->timeout,
                  FromSeconds(kUnitTimes * Seconds(unit_time) *
                              (units + std::max(member.RunCostInUnits().value_or(0), 0.0))));
}

// One rule for all policies. A policy that goes on without a late worker never waits for its run,
// so the round's view does not show that the run is endless. The worker's own report shows it.
void Liveness::CheckRunInHand(Member& member, const msg::RunInHand& run) {
  const Duration lasts(run.lasts_ns);
  if (run.units == 0 || lasts < job_->timeout || !member.present() || member.away()) return;
  if (lasts >= PatienceWith(member, run.units, job_->members.MedianUnitTime())) {
    job_->Evict(member, NoUnitFinished(lasts));
  }
}

void Liveness::CheckProgress(Member& member, const RoundWork& open, Duration usual) {
  if (member.away()) return;
  const policies::WorkerView* view = open.WorkerViewOf(member.id.worker);
  // Before it has applied the last round it cannot begin; after its last unit it has done its part.
  if (view == nullptr || view->units_done >= view->units_given || member.next < open.round())
    return;
  const Duration unit_time = std::max(member.unit_times.mean, usual);
  const Duration patience =
      unit_time == Duration{}
          ? kUnitTimes * job_->timeout
          : std::max(job_->timeout,
                     kUnitTimes * policies::RunTime(*view, policies::InHand(*view), unit_time));
  const Duration idle = job_->now() - std::max(member.last_progress, open.started());
  LOCKSTEP_CHECK(idle >= Duration{}, "worker {} makes progress in time to come", member.id.worker);
  if (idle >= patience) job_->Evict(member, NoUnitFinished(idle));
}

}  // namespace lockstep::coordinator
