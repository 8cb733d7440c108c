// Compares the ends of epochs that simulated workers are shown (worker::action::EpochEnd) with the
// rounds that the job has closed. Each end is shown once, in order, before the first round of a
// later epoch. Truth sees whether the parameters are those before that round.
//
// A worker whose connection has ended may have an attempt at the epoch's last round that counts no
// more. The others heard of its loss and made another one, perhaps over fewer samples. It copies
// the parameters when it is back.
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
  // The worker has this attempt in its parameters.
  void OnApplied(const MemberId& member, RoundId round, Attempt attempt);
  void OnClosed(RoundId round, Epoch epoch, Attempt attempt);
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
    Attempt attempt;  // at the round before
  };

  struct Closed {
    Epoch epoch;
    Attempt attempt;
  };

  std::map<RoundId, Closed> closed_;
  std::map<MemberId, std::pair<RoundId, Attempt>> applied_;  // last
  std::vector<Shown> shown_;                                 // those that are not late
  std::map<MemberId, Epoch> last_;                           // that a member was shown
  std::string failure_;
};

}  // namespace lockstep::simulate
