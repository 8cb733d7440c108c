// The one way back into the rounds, for workers that join late, were put behind, or lost their
// parameters. A member connects to all others, copies state from one that is level, and reports
// when it is level itself.
//
// Decides from whom a member copies, when it begins anew with another donor, and when it has
// failed. In: who is behind, what it reports (Reached, Copied, Level), donors that are lost, time.
// Out: Form and CatchUp orders, members that become live, evictions of who cannot copy the state.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/messages.h"
#include "base/result.h"
#include "coordinator/job/context.h"
#include "coordinator/membership/initial_broadcast.h"
#include "coordinator/membership/state_streams.h"
#include "coordinator/round/pipeline.h"

namespace lockstep::coordinator {

class Joining {
 public:
  Joining(Job* job, Pipeline* rounds, StateStreams* streams, InitialBroadcast* initial_broadcast)
      : job_(job), rounds_(rounds), streams_(streams), initial_broadcast_(initial_broadcast) {}

  // Training begins with `first` and parameters from `source`: until that round is committed, a
  // newcomer gets the same parameters from the same source.
  void OnBegin(RoundId first, StateSource source) {
    first_round_ = first;
    source_ = source;
  }
  // It was formed with the others and does not have the parameters that they begin with: it copies.
  void TakeIn(const Member& member);
  Status OnReached(Member& from, const msg::Reached& message);
  Status OnBehind(Member& from, const msg::Behind& message);
  Status OnCopied(Member& from, const msg::Copied& message);
  Status OnLevel(Member& from, const msg::Level& message);
  void OnUnreachable(Member& from, const MemberId& peer);
  void OnOut(const MemberId& member);
  // A member is back after an absence, and can begin with copied parameters now.
  void OnBack(const MemberId& member);
  // A member was asked to copy and has not reported the end: it may be level by now.
  bool MayBecomeLevel() const;
  // Nobody is live, and somebody behind may have what the others had: true when it is live again.
  bool ReadmitApplied();
  // Nobody is live: who is behind, and may have all closed rounds, is asked whether it can promise
  // not to apply the committed one. Once each.
  void AskBehind();
  // Nobody has what the others had, and somebody behind has promised that: true when it is live
  // again, and the committed round is to be computed again.
  bool ReadmitDenied();
  // A member that is behind may still report what it has.
  bool MayReadmit() const;
  void CheckInvariants() const;
  // Its deadlines are long, so a call at each period of liveness is enough. True: a member joined.
  bool Advance();

 private:
  enum : std::uint8_t { kSelfSays = 1, kPeerSays = 2, kBoth = 3 };
  // Connects: it is in state kForming.
  struct Newcomer {
    std::uint32_t formation = 0;
    Time deadline;
    std::map<MemberId, std::uint8_t> peers;  // who has said that they reach each other
    // Peers that it has not reached, and that were pinged then. One that answers is alive, so the
    // two do not reach each other. One that does not is lost soon, and this member is not to blame.
    struct Unreached {
      std::uint64_t ping = 0;
      std::string error;
    };
    std::map<MemberId, Unreached> unreached;
    bool streaming = false;  // the checkpoint is on its way to it, or there
  };
  // Copies: it is in state kCatchingUp, and `order` is its Member::copy_order.
  struct Copying {
    std::vector<MemberId> donors;  // in turn, at most msg::kMostDonors
    RoundId open_round;
    Time since;
    std::uint32_t order = 0;
    std::uint64_t values = 0;  // that are there; the most that it said
    std::uint32_t tries = 0;   // less those whose donors were lost
    bool failed = false;       // it said so
  };

  void Form(Member& member);
  bool CheckNewcomers();  // true: somebody is in
  void CheckCopying();
  bool Connected(const Newcomer& newcomer) const;
  void EvictUnreached(Member& newcomer, WorkerId peer, const std::string& error);
  // True: a peer that it has not reached has shown that it is alive, so it had to go.
  bool JudgeUnreached(Member& member, const Newcomer& newcomer);
  // A peer that it had reached and no longer does, or somebody in the job whom it does not reach.
  const MemberId* LostAgain(const MemberId& id, const Newcomer& newcomer) const;
  // False: not now.
  bool LetIn(Member& member, Newcomer& newcomer);
  bool Copy(Member& member, const std::optional<MemberId>& not_from);
  // The best one first; empty: there is none. `not_from`: only if there is no other.
  std::vector<Member*> ChooseDonors(const Member& member, RoundId at,
                                    const std::optional<MemberId>& not_from);
  // False: no donor is left. Its state stays the common one unless it has become doubtful.
  bool HasDonor(Copying& copying);
  // There are some who have the parameters, and it reaches none of them.
  bool IsCutOff(const Member& member) const;
  void MakeLive(Member& member, RoundId next);
  static bool LacksCommitted(const Member& member, RoundId committed);

  Job* job_;
  Pipeline* rounds_;
  StateStreams* streams_;
  InitialBroadcast* initial_broadcast_;
  RoundId first_round_;
  StateSource source_ = StateSource::kSeed;
  std::map<MemberId, Newcomer> newcomers_;  // at most one for each slot
  std::map<MemberId, Copying> copying_;     // the same
};

}  // namespace lockstep::coordinator
