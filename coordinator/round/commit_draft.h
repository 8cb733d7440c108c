// A commit before it is made: what follows from the parts that it counts. Pure functions; nobody
// hears of a draft, and until Pipeline::MakeCommit nothing has changed.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/messages.h"
#include "base/result.h"
#include "coordinator/job/context.h"
#include "coordinator/round/committed_round.h"
#include "coordinator/round/open_round.h"
#include "coordinator/round/planner.h"
#include "coordinator/round/sampler.h"
#include "policies/policy.h"

namespace lockstep::coordinator {

// Everything that follows from its parts; the members and the plan of the next round are missing.
struct CommitDraft {
  msg::Commit commit;
  std::string reason;                // the verdict's, or what ended the attempt before
  std::string policy;                // that gave the verdict
  std::vector<SampleRange> settled;  // counted or skipped: not served again in this epoch
  Sampler before;                    // the sampler before the round is settled
  Sampler after;
  bool epoch_ended = false;
  bool last = false;  // no round follows
};

// Makes the first attempt over the verdict's parts. `update`: the number of the commit's update.
CommitDraft FirstAttempt(const Job& job, const OpenRound& open, const Sampler& sampler,
                         std::uint64_t update, policies::ClosingVerdict verdict);
// Makes the same update over the parts that can still be fetched, with other owners.
CommitDraft NextAttempt(const CommittedRound& committed, OwnerMap owners);
// With the samples, the scalars of the update, and what the sampler settles. `stopping`: no round
// follows. An error is why the job cannot go on.
Result<CommitDraft> CompleteDraft(CommitDraft draft, const RoundWork& work, const Job& job,
                                  const Planner& planner, bool stopping);

// Judges before anything is counted; CompleteDraft knows the end of the last epoch too.
bool IsLastRound(const JobSection& job, RoundId round);

// Workers without a part in the commit. In a relaxed round nobody waits for their work: it counts
// in the next round.
std::vector<WorkerId> Carried(const RoundWork& work, const msg::Commit& commit);

}  // namespace lockstep::coordinator
