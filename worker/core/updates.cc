#include "worker/core/updates.h"

namespace lockstep::worker {

void Updates::FallBehind(const std::string& reason, bool clean) {
  parameters_.FallBehind(reason);
  EndCatchUp();
  own_.StopAll();
  context_.Log(
      fmt::format("this worker is behind at round {}: {}; it copies the parameters from another "
                  "one, then goes on",
                  parameters_.next(), reason));
  const bool has_any = clean && parameters_.next().value > 0;
  context_.Tell(
      msg::Behind{RoundId(has_any ? parameters_.next().value - 1 : 0), has_any, reason, order()});
}

void Updates::ShowEpochEnd() {
  with_.epoch_ends.Update(parameters_, rounds_, own_.Busy() && !own_.UsesParameters());
}

void Updates::BecomeLevel(RoundId next, Attempt newest) {
  parameters_.BecomeLevel(next, newest);
  with_.epoch_ends.OnNewest(rounds_.EpochOf(parameters_.newest()->round));
  ShowEpochEnd();
}

void Updates::TellApplied(const msg::Commit& commit, std::uint64_t digest) {
  const RoundId round = commit.round;
  parameters_.OnApplied({round, commit.attempt, commit.checkpoint_writer});
  own_.OnApplied(round, commit.parts);
  with_.epoch_ends.OnNewest(commit.epoch);
  context_.Tell(
      msg::Applied{round, commit.attempt,
                   static_cast<std::uint32_t>(round.value % context_.layout.bucket_count()), digest,
                   context_.now.time_since_epoch().count(), own_.runs()});
  with_.evaluation.OnApplied(commit);
  BeginCheckpoint(commit);
}

void Updates::Prune() {
  rounds_.Prune(next());
  sums_.ForgetBefore(rounds_.FirstKept(next()));
}

}  // namespace lockstep::worker
