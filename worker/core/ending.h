// How it ends for this worker, and what its last line says.
//
// Decides: how long the job's last sums are waited for, when the digest of the parameters is taken,
// and with what the process exits. In: Finish, the digest, orders to leave, the end of the
// connection, the time; of the core, what the parameters lack. Out: DigestState, Final, Leave, and
// one Exit.
//
//   running --Finish--> applying what is committed --all, or not in time--> digest --> over
//      `--- refused, asked to leave, left alone, a broken protocol --------------------^
//
// Invariants: nothing is emitted behind the Exit but what is said to the coordinator with it. The
// digest is that of the job (I1): it is taken only where nothing of what was committed is lacking.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/messages.h"
#include "base/time.h"
#include "worker/core/context.h"

namespace lockstep::worker {

// Of the parameters, now.
struct LastState {
  std::string lack;  // why they are not those after all that is committed; empty: they are
  RoundId next;      // the first round that is not applied
  std::vector<SealedPart> applied = {};  // as in action::StartWork
  bool copied = false;
};

class Ending {
 public:
  explicit Ending(Context& context) : context_(context) {}

  // Nothing new is computed from here on.
  bool begun() const { return finish_.has_value(); }
  bool over() const { return over_; }

  void OnFinish(const msg::Finish& finish);
  void OnRefused(const msg::Refuse& refuse, const LastState& state);
  void OnLeaveAsked(const std::string& reason, const LastState& state);
  void OnCoordinatorGone(const std::string& reason, const LastState& state);
  // The next coordinator is another core's to deal with.
  void Detach() { over_ = true; }
  // The coordinator did what cannot be: this worker leaves, with the reason in its last line.
  void OnBroken(const std::string& what);
  // True when it was the digest.
  bool OnOpDone(const event::OpDone& done, RoundId next);

  // Whether the last step is due. `unapplied`: sums that are committed may still be applied here;
  // `in_use`: but for a unit that reads the parameters.
  bool Due(bool unapplied, bool in_use);
  // That step. It may be the digest, which ends it when it is there.
  void Conclude(const LastState& state);
  Time next_timer() const { return begun() && !digest_op_ ? until_ : kNever; }

  void CheckInvariants() const;

 private:
  std::string NotFinal(const LastState& state) const;
  void Exit(action::Exit exit);

  Context& context_;
  std::optional<msg::Finish> finish_;
  Time until_ = kNever;  // the last sums are waited for
  std::optional<std::uint64_t> digest_op_;
  std::vector<SealedPart> applied_;  // when that was taken
  bool copied_ = false;
  bool over_ = false;
};

}  // namespace lockstep::worker
