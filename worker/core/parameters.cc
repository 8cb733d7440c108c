#include "worker/core/parameters.h"

#include <utility>

#include "base/check.h"

namespace lockstep::worker {

void Parameters::Start(RoundId next, bool known) {
  LOCKSTEP_CHECK(!started() && !update_, "a start at round {} behind the first", next);
  next_ = next;
  standing_ = known ? Standing::kLevel : Standing::kBehind;
}

void Parameters::FallBehind(std::string why) {
  LOCKSTEP_CHECK(level() || catching_up(), "behind at round {} for a second time: {}", next_, why);
  standing_ = Standing::kBehind;
  behind_why_ = std::move(why);
  Abandon();
}

// Whatever this worker has is forgotten: a state that is doubtful, one that is too old and none at
// all are mended in the same way.
void Parameters::BeginCopies() {
  LOCKSTEP_CHECK(started(), "copies of a state before the start");
  standing_ = Standing::kCatching;
  Abandon();
}

void Parameters::BecomeLevel(RoundId next, Attempt newest) {
  LOCKSTEP_CHECK(catching_up() && !update_, "I1: level at round {} in the midst of a change", next);
  LOCKSTEP_CHECK(next.value > 0, "I1: copies of what is before the first round");
  standing_ = Standing::kLevel;
  next_ = next;
  newest_ = Newest{RoundId(next.value - 1), newest};
}

void Parameters::NameWriter(const MemberId& writer) {
  LOCKSTEP_CHECK(newest_ && !update_, "a checkpoint of parameters that are after no round");
  newest_->writer = writer;
}

void Parameters::BeginUpdate(std::uint64_t op, RoundId round, Attempt attempt) {
  LOCKSTEP_CHECK(!update_, "I1: round {} is applied over round {}", round, update_->round);
  LOCKSTEP_CHECK(catching_up() || (level() && round >= next_),
                 "I1: round {} is applied where round {} comes next", round, next_);
  update_ = Update{op, round, attempt};
}

Parameters::Update Parameters::EndUpdate() {
  LOCKSTEP_CHECK(update_, "an update of round {} has ended that did not begin", next_);
  return *std::exchange(update_, std::nullopt);
}

void Parameters::OnApplied(const Newest& newest) {
  LOCKSTEP_CHECK(level() && newest.round >= next_, "I1: round {} was applied before round {}",
                 newest.round, next_);
  next_ = newest.round.Next();
  newest_ = newest;
}

void Parameters::CheckInvariants() const {
  LOCKSTEP_CHECK(!newest_ || newest_->round.Next() == next_,
                 "I1: round {} is said to be the newest in the parameters, and {} comes next",
                 newest_->round, next_);
  LOCKSTEP_CHECK(!newest_ || level(),
                 "I1: the parameters are doubtful, and round {} is said to be in them",
                 newest_->round);
  LOCKSTEP_CHECK(!update_ || update_->abandoned || level() || catching_up(),
                 "I1: round {} is applied to parameters that are doubtful", update_->round);
}

}  // namespace lockstep::worker
