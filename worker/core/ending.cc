#include "worker/core/ending.h"

#include <fmt/format.h>

#include <utility>

#include "base/check.h"

namespace lockstep::worker {

void Ending::OnFinish(const msg::Finish& finish) {
  LOCKSTEP_CHECK(!over_, "the job ends behind the end");
  finish_ = finish;
  until_ = context_.now + context_.config.finish_timeout;
}

// What was committed is applied by everybody alike, so that the last digest is that of the job. The
// unit under way may take its time; sums that nobody serves any more may not.
bool Ending::Due(bool unapplied, bool in_use) {
  if (!finish_ || digest_op_) return false;
  if (finish_->failed || !unapplied) return true;
  if (in_use) until_ = context_.now + context_.config.finish_timeout;
  return context_.now >= until_;
}

void Ending::Conclude(const LastState& state) {
  LOCKSTEP_CHECK(finish_ && !digest_op_, "the end is come to twice, or before the job's");
  if (std::string why = NotFinal(state); !why.empty()) {
    return Exit({finish_->reason, finish_->failed, false, "", std::move(why), finish_->early});
  }
  digest_op_ = context_.NewOp();
  applied_ = state.applied;
  copied_ = state.copied;
  context_.Emit(action::DigestState{*digest_op_});
}

bool Ending::OnOpDone(const event::OpDone& done, RoundId next) {
  if (digest_op_ != done.op) return false;
  context_.Tell(msg::Final{RoundId(next.value == 0 ? 0 : next.value - 1), done.text});
  Exit(
      {finish_->reason, false, false, done.text, "", finish_->early, std::move(applied_), copied_});
  return true;
}

// Not negotiated: the coordinator treats a member that leaves as one that is lost, only sooner.
void Ending::OnLeaveAsked(const std::string& reason, const LastState& state) {
  Exit({reason, false, true, "", NotFinal(state)});
  context_.Tell(msg::Leave{reason});
}

// Without a coordinator nobody decides, so there is nothing to go on with, unless it has said that
// the job is over.
void Ending::OnCoordinatorGone(const std::string& reason, const LastState& state) {
  if (!finish_) return Exit({reason, true, false, "", NotFinal(state)});
  // Its last word was heard: it need not be there for the rest.
  if (digest_op_) {
    Exit({finish_->reason, false, false, "", "", finish_->early, std::move(applied_), copied_});
  }
}

void Ending::OnRefused(const msg::Refuse& refuse, const LastState& state) {
  Exit({WordsOf(refuse), true, false, "", NotFinal(state)});
}

void Ending::OnBroken(const std::string& what) {
  const std::string reason = fmt::format("the coordinator broke the protocol: {}", what);
  // First, so that the end of the connection that follows on Leave is not taken for the reason.
  Exit({reason, true, false, "", reason});
  context_.Tell(msg::Leave{reason});
}

// Why the parameters are not the job's last ones; empty: they are. Of several reasons the one that
// a person can do most about.
std::string Ending::NotFinal(const LastState& state) const {
  if (finish_ && finish_->failed) return "the job failed";
  if (finish_ || !state.lack.empty()) return state.lack;
  return fmt::format("it left before round {}", state.next);
}

void Ending::Exit(action::Exit exit) {
  LOCKSTEP_CHECK(!over_, "the end comes twice");
  over_ = true;
  context_.Emit(std::move(exit));
}

void Ending::CheckInvariants() const {
  LOCKSTEP_CHECK(!digest_op_ || finish_, "the last digest is taken before the job ends");
  LOCKSTEP_CHECK(!finish_ || until_ != kNever, "I6: the last sums are waited for without end");
}

}  // namespace lockstep::worker
