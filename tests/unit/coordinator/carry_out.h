// The rounds' decisions, carried out without the coordinator's other parts: nobody evaluates,
// nobody writes a checkpoint, the policy stays.
#pragma once

#include <vector>

#include "coordinator/round/pipeline.h"

namespace lockstep::coordinator {

// Appends the records of rounds that are closed to `closed`.
inline void AdvanceRounds(Pipeline* rounds, std::vector<RoundRecord>* closed) {
  for (;;) {
    Decision decision = rounds->Decide();
    rounds->CheckInvariants();
    const bool commits = decision.kind == Decision::Kind::kCommit;
    const CommittedRound* last = rounds->committed();
    if (decision.kind == Decision::Kind::kClose ||
        (commits && last != nullptr && !last->closed())) {
      closed->push_back(*rounds->CloseCommitted());
    }
    if (commits) rounds->MakeCommit(*rounds->DraftCommit(std::move(decision.verdict)));
    if (decision.kind == Decision::Kind::kNextAttempt) {
      rounds->MakeCommit(*rounds->DraftNextAttempt());
    }
    if (decision.kind == Decision::Kind::kOpenAgain) rounds->OpenAgain();
    if (decision.kind == Decision::Kind::kSendAgain) rounds->SendAgain(std::nullopt);
    rounds->CheckInvariants();
    if (commits || decision.kind == Decision::Kind::kWait) return;
  }
}

}  // namespace lockstep::coordinator
