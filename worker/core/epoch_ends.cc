#include "worker/core/epoch_ends.h"

namespace lockstep::worker {

void EpochEnds::Update(const Parameters& parameters, const LiveRounds& rounds, bool on_copy) {
  if (!context_.config.epoch_ends || shown_ || on_copy) return;
  if (!parameters.level() || parameters.update()) return;
  const std::optional<Epoch> epoch = rounds.EpochOf(parameters.next());
  if (!epoch || *epoch <= seen_.next) return;
  const Epoch ended(epoch->value - 1);
  seen_.next = *epoch;
  shown_ = true;
  context_.Emit(action::EpochEnd{ended, parameters.next(), seen_.newest != ended});
}

std::optional<RoundId> EpochEnds::Next(const Parameters& parameters,
                                       const LiveRounds& rounds) const {
  if (!context_.config.epoch_ends) return std::nullopt;
  for (const auto& [id, round] : rounds.all()) {
    if (id > parameters.next() && rounds.EpochOf(id) > seen_.next) return id;
  }
  return std::nullopt;
}

}  // namespace lockstep::worker
