// The round as policies see it: plain values made from the shares of the round's work. Each change
// updates them, so that judging costs no pass over the workers.
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

// Copies what earlier rounds tell of a member.
void CopyHistory(const Member& member, policies::WorkerView* view);

// Updates the view after a change of the share; `samples` are those in its queue. `finished_at`
// stays at the first time at which all was sealed and delivered.
void Renew(const WorkerShare& share, std::uint64_t samples, Time now, policies::WorkerView* view);

// The worker has done so many units of its queue, more than when it was heard of last.
void NotePace(std::uint32_t done, Time now, policies::WorkerView* view);

// The member has applied the rounds before its `next`: it begins with a round when it has applied
// the one before, and its pace counts from there.
void NoteLevel(const Member& member, RoundId round, bool relaxed, Time now,
               policies::WorkerView* view);

// The view as if every sealed part were delivered. It tells whether a round waits for receipts
// alone: would the policy close it then?
struct Hypothetical {
  Hypothetical(const policies::RoundView& now, std::span<const WorkerShare> shares);
  Hypothetical(const Hypothetical&) = delete;  // the view is of the workers
  Hypothetical& operator=(const Hypothetical&) = delete;

  std::vector<policies::WorkerView> workers;
  policies::RoundView view;
};

}  // namespace lockstep::coordinator
