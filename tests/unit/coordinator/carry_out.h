// The rounds' decisions, carried out without the coordinator's other parts: nobody evaluates,
// nobody writes a checkpoint, the policy stays.
#pragma once

#include <vector>

#include "coordinator/core/from_round.h"
#include "coordinator/round/pipeline.h"
#include "tests/unit/coordinator/owned_in_tests.h"

namespace lockstep::coordinator {

// Appends the records of rounds that are closed to `closed`.
inline void AdvanceRounds(Job* job, Pipeline* rounds, std::vector<RoundRecord>* closed) {
  for (;;) {
    Decision decision = rounds->Decide();
    rounds->CheckInvariants();
    const bool commits = decision.kind == Decision::Kind::kCommit;
    const CommittedRound* last = rounds->committed();
    if (decision.kind == Decision::Kind::kClose ||
        (commits && last != nullptr && !last->closed())) {
      const ClosedRound round = rounds->CloseCommitted();
      closed->push_back(MakeRecord(*job, round));
      NoteRound(round, closed->back(), false, &Edit(job->closed), &job->members);
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
