// Compares the ends of epochs that simulated workers are shown (worker::action::EpochEnd) with the
// rounds that the job has closed. Each end is shown once, in order, before the first round of a
// later epoch. Truth sees whether the parameters are those before that round.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "worker/core/step_io.h"

namespace lockstep::simulate {

class EpochEndCheck {
 public:
  void OnShown(const MemberId& member, const worker::action::EpochEnd& end);
  void OnClosed(RoundId round, Epoch epoch);
  // The job goes on before that round: later ones are closed anew. Another coordinator may give a
  // new process the name of an earlier one.
  void OnResumed(RoundId next);

  // The first violation; empty: none. At the end of a job that has completed.
  std::string Failure() const;

 private:
  struct Shown {
    MemberId member;
    Epoch epoch;
    RoundId next;
  };

  std::map<RoundId, Epoch> closed_;
  std::vector<Shown> shown_;        // those that are not late
  std::map<MemberId, Epoch> last_;  // that a member was shown
  std::string failure_;
};

}  // namespace lockstep::simulate
