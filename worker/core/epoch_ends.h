// The ends of epochs, for a program that asks for them (MachineConfig::epoch_ends). A worker hears
// of an end also where the policy gives it no units for a while.
//
// Decides: when the program is shown the parameters after an epoch's last round, and that they stay
// as they are until it has seen them. In: how far the parameters are, which epochs the rounds have,
// and that the program has seen an end. Out: action::EpochEnd.
//
//   nothing to tell --the next round is of a later epoch--> due --no unit is computed--> shown
//         ^------------------------------ the program has seen it ------------------------'
//
// Invariants: one end at a time, of ever later epochs; no update of the parameters while one is
// shown.
//
// The parameters are those of the epoch's end, but later ones where this worker copied them because
// it was behind or joined. Asynchronous work on a copy goes on for longer than a round, so updates
// do not wait for it: then, too, the parameters may be later ones. An end that comes late says so
// (action::EpochEnd::late).
#pragma once

#include <optional>

#include "worker/core/context.h"
#include "worker/core/live_rounds.h"
#include "worker/core/parameters.h"

namespace lockstep::worker {

class EpochEnds {
 public:
  explicit EpochEnds(Context& context) : context_(context), seen_(context.config.epochs_seen) {}

  // A round of this epoch is the newest in the parameters; none: that is not known.
  void OnNewest(std::optional<Epoch> epoch) { seen_.newest = epoch; }
  void OnSeen() { shown_ = false; }
  // Shows an end that is due. `on_copy`: the compute thread is in a unit, which reads a copy of the
  // parameters.
  void Update(const Parameters& parameters, const LiveRounds& rounds, bool on_copy);

  // The parameters of the next end are those before this round, of those that are known; none: it
  // is not among them.
  std::optional<RoundId> Next(const Parameters& parameters, const LiveRounds& rounds) const;
  // The program looks at the parameters.
  bool shown() const { return shown_; }
  const EpochsSeen& seen() const { return seen_; }

 private:
  Context& context_;
  EpochsSeen seen_;
  bool shown_ = false;
};

}  // namespace lockstep::worker
