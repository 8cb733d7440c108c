// With optimizer.replicas: the barrier before an attempt is decided. All replicas of its shards say
// Held. Until then nobody changes anything, and any failure leads to another attempt.
//
// After it the others take the new parameters from the replicas.
//
// Decides when all replicas have said Held. At the deadline it decides who is pinged, who gets more
// time, and who holds nothing for now. After the barrier it decides from whom nobody should fetch.
// In: Held, who is out, the time.
//
// Invariants:
//   I6  the deadline is never kNever; each look at it moves it on or ends the attempt.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/messages.h"
#include "base/result.h"
#include "base/time.h"
#include "coordinator/job/context.h"

namespace lockstep::coordinator {

class Barrier {
 public:
  // An attempt's commit is sent now. `copies`: much state has to be copied before it is decided, as
  // holders have changed, or a checkpoint is being gathered.
  Barrier(const Job* job, const msg::Commit& commit, bool copies);

  // An error is a violation of the protocol by the sender. True: with it all have said so.
  Result<bool> OnHeld(const MemberId& from);
  bool Holds(const MemberId& member) const;
  // The member has copied so many values of the state so far, and goes on.
  void OnCopied(const MemberId& from, std::uint64_t values);
  // All replicas hold their shards: the attempt stands, whoever is out from now on.
  bool decided() const { return awaited_ == 0; }

  Time Deadline() const;
  struct Decision {
    std::vector<WorkerId> ping;
    std::vector<WorkerId> blamed;  // another attempt is needed, without these
    // Members that have not answered, whatever they hold: nobody should wait for what they have.
    std::vector<WorkerId> silent;
  };
  // While it is not decided.
  Decision OnDeadline();
  // Once it is, and while somebody has not applied it. Nobody is blamed.
  Decision OnFetchDeadline();
  // A text for people.
  std::string Waiting() const;

 private:
  struct Replica {
    MemberId id;
    bool held = false;
    std::uint64_t copied = 0;
  };

  void Begin(Duration patience);
  Duration Longer() const;
  Decision Ping();
  std::vector<WorkerId> Silent() const;

  const Job* job_;
  std::vector<Replica> replicas_;  // ascending
  std::vector<WorkerId> members_;  // of the attempt
  std::uint32_t awaited_ = 0;
  Time from_;
  Duration patience_{};
  std::optional<Time> pinged_at_;
  std::uint32_t extensions_ = 0;
  Time stuck_from_;
};

}  // namespace lockstep::coordinator
