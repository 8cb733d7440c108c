#include "coordinator/membership/draining.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/check.h"

namespace lockstep::coordinator {

Result<std::string> Draining::Request(WorkerId worker) {
  const auto invalid = [](std::string text) { return Error{ErrorCode::kInvalid, std::move(text)}; };
  if (worker.value >= job_->members.slots()) {
    return invalid(fmt::format("there is no worker {}: workers are 0 to {}", worker,
                               job_->members.slots() - 1));
  }
  Member& member = job_->members.at(worker);
  if (!member.connected()) return invalid(fmt::format("worker {} is not there", worker));
  if (member.draining) return fmt::format("worker {} is leaving already", worker);
  const auto stays = [&](const Member& other) {
    return other.live() && !other.draining && other.id.worker != worker;
  };
  if (member.live() && std::ranges::none_of(job_->members.all(), stays)) {
    return invalid(fmt::format("worker {} cannot leave: nobody else has the parameters", worker));
  }
  member.draining = true;
  any_asked_ = true;
  std::string text = fmt::format("worker {} leaves as soon as no round needs it", worker);
  const auto left =
      static_cast<std::uint32_t>(std::ranges::count_if(job_->members.all(), [&](const Member& m) {
        return m.present() && !m.draining && m.id.worker != worker;
      }));
  if (member.present() && left < job_->min_workers()) {
    text += fmt::format("; the job then waits until {} workers are there again{}",
                        job_->min_workers(), job_->QuorumPatience().Words());
  }
  job_->Log(LogLevel::kInfo, "{}", text);
  return text;
}

bool Draining::Needed(const Member& member) const {
  if (!member.live()) return false;
  if (rounds_->replicas().Needed(member.id)) return true;
  const WorkerId worker = member.id.worker;
  if (const OpenRound* open = rounds_->open()) {
    const RoundWork& work = open->work();
    if (work.Share(worker) != nullptr || work.delivery().IsOwner(worker)) return true;
  }
  const CommittedRound* last = rounds_->committed();
  if (last == nullptr || last->closed()) return false;
  const auto& owners = last->commit().owners.owners;
  return last->work().Share(worker) != nullptr ||
         std::ranges::find(owners, member.id, &OwnerShare::owner) != owners.end();
}

void Draining::Advance() {
  if (job_->phase() == Phase::kEnding || job_->phase() == Phase::kFinished) return;
  if (!any_asked_) return;
  any_asked_ = false;
  for (Member& member : job_->members.all()) {
    if (!member.draining || member.asked_to_leave) continue;
    if (!member.connected() || Needed(member)) {
      any_asked_ = true;
      continue;
    }
    LOCKSTEP_CHECK(!rounds_->replicas().Needed(member.id) || !member.live(),
                   "worker {} is asked to leave with the last copy of a shard", member.id.worker);
    member.asked_to_leave = true;
    job_->Send(member, msg::AskToLeave{"it was asked to leave"});
  }
}

}  // namespace lockstep::coordinator
