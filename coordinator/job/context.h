// The state that the coordinator's parts share: start parameters, clock, members, actions of this
// step. Parts do not call each other back from within a handler. An eviction, or the reason to end
// the job, is noted here; Coordinator::TakeOut acts on it when the handler has returned.
#pragma once

#include <fmt/format.h>

#include <array>
#include <deque>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/result.h"
#include "base/time.h"
#include "coordinator/job/bounds.h"
#include "coordinator/job/members.h"
#include "coordinator/job/owned.h"
#include "coordinator/job/step_io.h"
#include "policies/policy.h"

namespace lockstep::coordinator {

// A worker said something that cannot be right. It goes on: "it broke the protocol: it " + what.
inline Error Violation(std::string what) { return {ErrorCode::kInvalid, std::move(what)}; }

// A member that the job goes on without. Noted where it is found out, done in Coordinator::TakeOut.
struct Leaving {
  enum class Kind : std::uint8_t {
    kEvicted,
    kRefused,       // what it was given is wrong: it need not come back as it is
    kByItself,      // it has said so
    kDisconnected,  // its connection has ended by itself
    kBroken,        // it has broken the protocol
  };
  MemberId member;
  std::string reason;
  Kind kind = Kind::kEvicted;
};

// The time that a job waits for its quorum, and the option that sets it.
struct Patience {
  std::string_view option;
  double seconds = 0;         // 0: for ever
  std::string Words() const;  // ", for at most 60s (job.join_timeout)", or nothing
};

// The newest state from which the job can continue: the journal's, else the checkpoint's.
std::optional<JobState> NewestState(const StartParameters& start);

// The data and the model that all workers agree on: those of the checkpoint, or of the majority of
// the workers that are ready (Admission).
struct Agreement {
  bool settled = false;
  std::string by;  // for people: "2 of 3 workers", "the checkpoint"
  std::string dataset_digest;
  std::uint64_t train_samples = 0;
  std::uint64_t test_samples = 0;
  std::uint64_t parameter_count = 0;
  std::uint32_t state_tensors = 0;
  TensorList tensors;
  std::vector<std::string> state_names;
  std::string initial_digest;
  bool own_parameters = false;  // those of one worker are everybody's (initial_broadcast.h)
};

// The account of closed rounds: a resumed job goes on with it (I2), and the summary reports it.
struct ClosedAccount {
  Totals totals;
  std::optional<double> train_loss;
  std::vector<Metric> metrics;  // of the last closed round
  double saved_seconds = 0;
  SentRecord sent;
};

//   gathering <--> forming --> training --> ending --> finished
//
// A formation gathers anew when somebody leaves it. The job may finish from any phase.
class JobPhase {
 public:
  Phase operator()() const { return phase_; }

 private:
  friend class Formation;    // gathering, forming
  friend class Coordinator;  // training
  friend class Ending;       // ending, finished
  void Enter(Phase next);

  Phase phase_ = Phase::kGathering;
};

// Each field has one writer, named beside it. Members and Bounds keep their own accounts.
//
// Invariants: `now` never goes back; `out` belongs to the running step and is set only then.
// `leaving` and `behind` are empty between two steps, except while nobody is judged after a stop of
// this process. Numbers of orders, pings and formations grow, so that an answer names its question.
struct Job {
  Job(StartParameters parameters, policies::Policy rules, std::uint32_t quorum);

  // Each worker holds shards of the optimizer's state (optimizer.replicas); else all of it.
  bool sharded() const { return start.config.optimizer.Shards(start.workers) > 0; }

  const StartParameters start;
  const Duration timeout;
  // Plans and closes rounds; it is exchanged only between two plans.
  Owned<policies::Policy, class Coordinator> policy;
  // I5: no commit with fewer live members. 1 to --workers; an exchange of policies never raises it.
  Owned<std::uint32_t, class Coordinator> min_workers;
  Members members;
  Bounds bounds;

  JobPhase phase;
  // The state from which the job continues: a checkpoint, or parameters that workers hold. Until
  // all are formed it is the newest of those that may be held.
  Owned<std::optional<JobState>, class Beginning> resumed;
  Owned<std::string, class Formation> transport;  // of the whole job, once it is formed
  Owned<Agreement, class Admission> agreed;
  Owned<ClosedAccount, class Coordinator> closed;
  // The newest checkpoint is that after this round.
  Owned<std::optional<RoundId>, class Checkpointer> saved_round;
  Owned<Emulation, class Slowdowns> emulation;
  Owned<bool, class OpenRound> said_metric_left_out;  // once for the job
  Owned<WrongDevices, class Pipeline> wrong_devices;
  // The latest time that two did not reach each other any more.
  Owned<Time, class BrokenEdges> edge_broke_at;

  // Time as the parts see it: the stops of this process are cut out, so that nobody looks late
  // because the coordinator slept.
  Owned<Time, class Coordinator> now;
  Owned<Duration, class Coordinator> stopped;
  Owned<Actions*, class Coordinator> out;

  Owned<std::deque<Leaving>, Job> leaving;  // at most one for each member
  Owned<std::deque<Leaving>, Job> behind;   // the same
  // The reason that ends the job as failed, at the end of this step; the first one stands.
  Owned<std::optional<std::string>, Job> failure;
  Owned<bool, Job> waits_for_quorum;
  // The numbers of the last ones.
  Owned<std::uint32_t, Job> formations;  // Form
  Owned<std::uint32_t, Job> orders;      // see base/messages.h
  Owned<std::uint64_t, Job> pings;

  std::uint64_t parameter_bytes() const { return 4 * agreed().parameter_count; }
  // The workers on which closing rules count. Of an elastic job it is those that are there.
  std::uint32_t CountedOn() const {
    return start.ComputingOf(start.elastic() ? members.CountLive() : start.workers);
  }
  double SinceStart(Time t) const { return Seconds(t + stopped() - start.started); }

  std::uint32_t NextFormation() { return ++formations.Write(); }
  std::uint32_t NextOrder() { return ++orders.Write(); }

  void Emit(Action action) {
    LOCKSTEP_CHECK(out() != nullptr, "an action outside of a step");
    out()->push_back(std::move(action));
  }
  // Messages to one worker arrive in the order in which they are sent, over one connection. So a
  // worker hears of the rounds in their order.
  void Send(const Member& to, msg::ToWorker message) {
    Emit(coordinator::Send{{to.connection},
                           std::make_shared<const msg::ToWorker>(std::move(message))});
  }
  void Send(std::span<const MemberId> to, msg::ToWorker message) {
    Send(to, std::make_shared<const msg::ToWorker>(std::move(message)));
  }
  void Send(std::span<const MemberId> to, std::shared_ptr<const msg::ToWorker> message) {
    std::vector<ConnectionId> connections = members.Connections(to);
    if (!connections.empty()) {
      Emit(coordinator::Send{std::move(connections), std::move(message)});
    }
  }
  template <class... Args>
  void Log(LogLevel level, fmt::format_string<Args...> format, Args&&... args) {
    Emit(LogLine{level, fmt::format(format, std::forward<Args>(args)...)});
  }
  // The member is out from now on; the others learn it at the end of this step. No effect on a
  // member that is out already.
  void Evict(Member& member, std::string reason, Leaving::Kind kind = Leaving::Kind::kEvicted) {
    if (!member.connected()) return;
    member.leaving = true;
    leaving.Write().push_back({member.id, std::move(reason), kind});
  }
  void BrokeProtocol(Member& member, const std::string& what) {
    Evict(member, "it broke the protocol: it " + what, Leaving::Kind::kBroken);
  }
  // The member is not live from now on, and catches up when it is heard. Unless it is in doubt, it
  // still has the parameters that it was last known to have.
  void PutBehind(Member& member, std::string reason) {
    if (member.behind() || !member.connected()) return;
    LOCKSTEP_CHECK(behind().size() < members.slots(), "I7: {} members are put behind",
                   behind().size());
    members.SetState(member, MemberState::kBehind, now());
    behind.Write().push_back({member.id, std::move(reason)});
  }
  // Its parameters are not, or may not be, those of the others.
  void PutInDoubt(Member& member, std::string reason) {
    PutBehind(member, std::move(reason));
    if (member.behind()) members.SetState(member, MemberState::kBehindInDoubt, now());
  }
  // The ping's number.
  std::uint64_t Ping(const Member& member) {
    Send(member, msg::Ping{++pings.Write(), (now() + stopped()).time_since_epoch().count()});
    return pings();
  }
  void Ping(WorkerId worker) {
    if (members.at(worker).connected()) Ping(members.at(worker));
  }
  bool HeardSince(WorkerId worker, Time t) const {
    const Member& member = members.at(worker);
    return member.live() && member.last_heard >= t;
  }
  // An edge also breaks when an end dies; one that was heard since the last break is alive.
  bool HeardSinceEdgeBroke(WorkerId worker) const {
    return members.at(worker).last_heard > edge_broke_at();
  }
  // I5: so many are live that a round may be committed. Says when that changes.
  bool HasQuorum();
  // "; the job can be resumed from its checkpoint after round 7"; empty where there is none.
  std::string ResumeText() const;
  std::string QuorumText() const;
  // A suffix for the text of a wait: "; worker 2 is away: validation". Empty: all are there.
  std::string AwayText() const;
  // A resumed job without a closed round loses nothing by its end: it waits as long as a start.
  Patience QuorumPatience() const;
  // The schedule's learning rate at `position`: updates of whole rounds that were made before. Not
  // finite: it has grown beyond the numbers, which RateNotFinite tells.
  float ScheduledRate(double position) const;
  std::string RateNotFinite(RoundId round) const;
  // Checks a commit's scalars: workers refuse others.
  Status CheckScalars(const msg::Commit& commit) const;
  void Fail(std::string reason) {
    if (!failure()) failure.Write() = std::move(reason);
  }

 private:
  friend class Coordinator;
  // The next one to be taken out, or to be told that it is behind.
  std::optional<Leaving> TakeLeaving() { return Take(leaving.Write()); }
  std::optional<Leaving> TakeBehind() { return Take(behind.Write()); }
  static std::optional<Leaving> Take(std::deque<Leaving>& from);
};

// The reason why no job of this coordinator can accept this Hello; empty: it can.
std::string ProtocolMismatch(const msg::Hello& hello);

}  // namespace lockstep::coordinator
