// Holds a simulated job to the invariants of docs/explanation/guarantees.md after every event, as
// far as the messages of the coordinator and its workers show them:
// - each unit has one holder; the units that a commit counts were sealed by their holder;
// - each sample of an epoch counts at most once, and exactly once in an epoch that is finished;
// - commits follow one another, and are made over delivered parts and with a quorum. Their scalars
//   are right (the learning rate by the checker's own formulas). A closed round is not committed
//   again, nor any round while a live member has its result;
// - a record names the contents of the commit, and accounts for every sample of the round;
// - nobody is evicted for breaking the protocol: all workers are honest here.
// Truth compares the values of the sums.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/interval_set.h"
#include "base/job_config.h"
#include "tools/simulate/simulation.h"
#include "worker/core/step_machine.h"

namespace lockstep::simulate {

class Checker {
 public:
  struct Options {
    std::uint64_t epoch_samples = 0;
    JobConfig config;
    bool weighed = false;  // Cluster::Options::weighed
  };
  Checker(Options options, const Simulation* simulation)
      : options_(std::move(options)), simulation_(simulation) {}

  void OnEvent(const coordinator::Event& event);  // before the coordinator has it
  void OnSend(const coordinator::Send& send);
  void OnClose(const coordinator::Close& close);
  void OnClosed(const coordinator::RoundRecord& record);
  void AfterStep();
  void OnCheckpoint(const coordinator::JobState& state);
  // Its members, and what they have said, are nothing to the next one.
  void OnCoordinatorGone();
  // The job goes on after that checkpoint, or what was noted, under another coordinator.
  void OnResumed(const coordinator::JobState& state);
  // The job has completed all its epochs.
  void AtEnd(const coordinator::JobResult& result);
  // The job has failed because nobody has its parameters. A level worker without trouble has them
  // when they are those after the last closed round or the one before it. They must come from the
  // attempts that were committed last: others were replaced (I1).
  void AtLoss(const std::string& reason, const MemberId& member,
              const worker::StepMachine::View& view);

  // The round, which was committed, is opened again or committed with another attempt, while the
  // coordinator has these members. A member that has the result of an attempt and continues with it
  // shows that the attempt stands.
  void AtReplacement(RoundId round, std::span<const coordinator::MemberStatus> members);

  // The first violation; empty: there was none.
  const std::string& failure() const { return failure_; }
  // The first round without a record.
  RoundId first_open() const { return closed_ ? closed_->Next() : RoundId(0); }

 private:
  using PartKey = std::tuple<MemberId, RoundId, PartIndex>;
  struct Holding {
    MemberId member;
    Unit unit;
  };
  // The contents of a round at its first commit.
  struct Round {
    bool relaxed = false;
    float local_rate = 0;  // as its plan gave it
    double position = 0;   // of the schedule, likewise
    std::map<UnitIndex, Unit> units;
  };
  // The job's position when a round is closed.
  struct Standing {
    coordinator::SamplerState sampler;
    std::uint64_t samples = 0;
    std::uint64_t requeued = 0;
  };
  struct Doubt {  // a unit was given away while `member` had it; right only if that is out
    MemberId member;
    UnitIndex unit;
  };

  void OnSealed(const MemberId& from, const msg::Sealed& m);
  void OnReceipts(const MemberId& from, const msg::Receipts& m);
  void OnRevoked(const MemberId& from, const msg::Revoked& m);
  void OnReached(const MemberId& from, const msg::Reached& m);
  void OnApplied(const MemberId& from, const msg::Applied& m);
  void OnPlan(const Plan& plan);
  void OnPlanAnew(const Plan& plan);
  void OnAssign(const MemberId& to, const msg::Assign& m);
  void OnCommit(const msg::Commit& m);
  void Carry(const msg::Commit& m);
  void CheckParts(const msg::Commit& m);
  void CheckScalars(const msg::Commit& m);
  // The rate of the schedule after so many updates of whole rounds.
  double Rate(double position) const;
  double SchedulePosition(RoundId round) const;
  void CheckRecord(const coordinator::RoundRecord& record);
  Standing StandingNow(Epoch epoch) const;
  void CheckDelivered(const msg::Commit& m);
  void Release(const MemberId& member);
  void Out(const MemberId& member);
  template <class... Args>
  void Fail(fmt::format_string<Args...> format, Args&&... args) {
    if (failure_.empty()) failure_ = fmt::format(format, std::forward<Args>(args)...);
  }

  Options options_;
  const Simulation* simulation_;
  std::string failure_;

  std::map<coordinator::ConnectionId, MemberId> members_;
  std::set<MemberId> present_;                      // live, behind or catching up
  std::set<std::pair<MemberId, MemberId>> mapped_;  // the first reads the second

  RoundId planned_;
  Attempt plan_;                      // Plan::attempt of the planned round
  std::map<RoundId, Attempt> plans_;  // and of the one before
  bool any_plan_ = false;
  bool carries_ = false;                   // the planned round has work of the one before
  std::map<UnitIndex, Unit> units_;        // of the planned round
  std::map<UnitIndex, MemberId> holders_;  // of its units that have a holder
  std::map<MemberId, std::vector<UnitIndex>> queues_;
  std::vector<Doubt> doubts_;
  std::map<PartKey, msg::Sealed> sealed_;
  std::set<std::tuple<MemberId, std::uint32_t, PartKey>> receipts_;  // owner, map version, part

  std::map<RoundId, Round> rounds_;    // the planned one and some before it
  std::map<MemberId, RoundId> next_;   // the first round that is not in its parameters
  std::vector<SampleRange> carried_;   // by commit_
  std::optional<msg::Commit> commit_;  // the last one
  std::optional<std::pair<RoundId, Attempt>> committed_;
  std::optional<RoundId> closed_;
  Attempt closed_attempt_;
  std::optional<Epoch> epoch_;
  std::uint32_t epochs_ = 0;  // finished
  IntervalSet counted_;
  std::map<RoundId, Standing> standings_;  // after rounds of which a checkpoint is asked for
  std::uint64_t samples_ = 0;              // in records
  std::uint64_t requeued_ = 0;             // the same
};

}  // namespace lockstep::simulate
