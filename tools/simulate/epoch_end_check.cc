#include "tools/simulate/epoch_end_check.h"

#include <fmt/format.h>

namespace lockstep::simulate {

void EpochEndCheck::OnShown(const MemberId& member, const worker::action::EpochEnd& end) {
  const auto last = last_.find(member);
  if (last != last_.end() && last->second >= end.epoch) {
    failure_ = fmt::format("worker {}.{} is shown the end of epoch {} after that of epoch {}",
                           member.worker, member.incarnation, end.epoch, last->second);
  }
  last_[member] = end.epoch;
  if (end.late) return;
  const auto applied = applied_.find(member);
  const bool known = applied != applied_.end() && applied->second.first.Next() == end.next;
  shown_.push_back({member, end.epoch, end.next, known ? applied->second.second : Attempt(0)});
}

void EpochEndCheck::OnApplied(const MemberId& member, RoundId round, Attempt attempt) {
  applied_[member] = {round, attempt};
}

void EpochEndCheck::OnClosed(RoundId round, Epoch epoch, Attempt attempt) {
  closed_[round] = {epoch, attempt};
}

void EpochEndCheck::OnResumed(RoundId next) {
  last_.clear();
  std::erase_if(closed_, [&](const auto& closed) { return closed.first >= next; });
  std::erase_if(shown_, [&](const Shown& shown) { return shown.next > next; });
}

// The round before a takeover may have no record: then nothing is said of it.
std::string EpochEndCheck::Failure() const {
  if (!failure_.empty()) return failure_;
  for (const Shown& shown : shown_) {
    const auto last = closed_.find(RoundId(shown.next.value - 1));
    const auto next = closed_.find(shown.next);
    if (last != closed_.end() && last->second.attempt > shown.attempt) continue;
    const bool right = (last == closed_.end() || last->second.epoch == shown.epoch) &&
                       (next == closed_.end() || next->second.epoch > shown.epoch);
    if (right) continue;
    return fmt::format("worker {}.{} was shown the end of epoch {} before round {}, which is wrong",
                       shown.member.worker, shown.member.incarnation, shown.epoch, shown.next);
  }
  return "";
}

}  // namespace lockstep::simulate
