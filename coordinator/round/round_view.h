// The round as policies see it: plain values that are made out of the shares of the round's work
// and kept up with each change, so that judging costs no pass over the workers.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/ids.h"
#include "base/time.h"
#include "coordinator/job/members.h"
#include "coordinator/round/worker_share.h"
#include "policies/policy.h"

namespace lockstep::coordinator {

// What is known of a member from the rounds before.
void CopyHistory(const Member& member, policies::WorkerView* view);

// After a change of the share, in whose queue are so many samples. `finished_at` stays at the first
// time at which all was sealed and delivered.
void Renew(const WorkerShare& share, std::uint64_t samples, Time now, policies::WorkerView* view);

// The worker has done so many units since it was heard of last.
void NotePace(std::uint32_t units, Time now, policies::WorkerView* view);

// The member has applied the rounds before its `next`: it begins with a round when it has applied
// the one before, and its pace counts from there.
void NoteLevel(const Member& member, RoundId round, bool relaxed, Time now,
               policies::WorkerView* view);

// As if every sealed part were delivered. To tell whether receipts are all that a round waits for:
// would the policy close it then?
struct Hypothetical {
  Hypothetical(const policies::RoundView& now, std::span<const WorkerShare> shares);
  Hypothetical(const Hypothetical&) = delete;  // the view is of the workers
  Hypothetical& operator=(const Hypothetical&) = delete;

  std::vector<policies::WorkerView> workers;
  policies::RoundView view;
};

}  // namespace lockstep::coordinator
