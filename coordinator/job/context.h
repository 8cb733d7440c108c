// What the parts of the coordinator share: the start parameters, the clock, the members, the
// actions of this step. Parts do not call each other back from within a handler: who must go, or
// what ends the job, is noted here and dealt with when the handler has returned
// (Coordinator::TakeOut).
#pragma once

#include <fmt/format.h>

#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/result.h"
#include "base/time.h"
#include "coordinator/job/bounds.h"
#include "coordinator/job/members.h"
#include "coordinator/job/step_io.h"
#include "policies/policy.h"

namespace lockstep::coordinator {

// What a worker said that cannot be right. It goes on: "it broke the protocol: it " + what.
inline Error Violation(std::string what) { return {ErrorCode::kInvalid, std::move(what)}; }

// Somebody whom the job goes on without. Noted where it is found out, done in Coordinator::TakeOut.
struct Leaving {
  MemberId member;
  std::string reason;
  bool refuse = false;        // what it was given is wrong: it need not come back as it is
  bool by_itself = false;     // it has said so
  bool disconnected = false;  // its connection has ended by itself
  bool broken = false;        // it has broken the protocol
};

// How long a job waits for its quorum, and the option that says so.
struct Patience {
  std::string_view option;
  double seconds = 0;         // 0: for ever
  std::string Words() const;  // ", for at most 60s (job.join_timeout)", or nothing
};

// Invariants: `now` never goes back; `out` is the step's, and set while one runs; `leaving` and
// `behind` are empty between two steps, but while nobody is judged after a stop of this process;
// orders, pings and formations have ever higher numbers, so that an answer names what it answers.
struct Job {
  Job(StartParameters parameters, policies::Policy rules, std::uint32_t quorum)
      : start(std::move(parameters)),
        policy(std::move(rules)),
        min_workers(quorum),
        members(start.workers),
        timeout(FromSeconds(start.config.liveness.timeout_s)),
        bounds(timeout) {
    emulation.unit_seconds = start.config.emulate.unit_time_s;
  }

  const StartParameters start;
  policies::Policy policy;  // that plans and closes rounds; exchanged only between two plans
  // I5: no commit with fewer live members. 1 to --workers; an exchange of policies never raises it.
  std::uint32_t min_workers;
  Members members;
  const Duration timeout;
  Bounds bounds;

  // Only onwards: gathering, forming, training, ending, finished.
  Phase phase = Phase::kGathering;
  std::string transport;         // of the whole job, once it is formed
  std::uint32_t formations = 0;  // numbers of Form handed out
  // What all agree on: set by the checkpoint or by the majority of the workers that are ready.
  bool agreed = false;
  std::string dataset_digest;
  std::uint64_t train_samples = 0;
  std::uint64_t test_samples = 0;
  std::uint64_t parameter_count = 0;
  std::uint32_t state_tensors = 0;
  std::vector<TensorInfo> tensors;
  std::vector<std::string> state_names;
  std::string initial_digest;
  bool own_parameters = false;  // those of one worker are everybody's (first_parameters.h)
  std::string agreed_by;        // for people: "2 of 3 workers", "the checkpoint"
  // Of closed rounds only: what a resumed job goes on with (I2).
  Totals totals;
  std::optional<double> train_loss;
  std::vector<Metric> metrics;         // of the last closed round
  std::optional<RoundId> saved_round;  // the newest checkpoint is that after this round
  double saved_seconds = 0;
  SentRecord sent;
  Emulation emulation;

  // Time as the parts see it: the stops of this process are cut out, so that nobody looks late
  // because the coordinator slept.
  Time now;
  Duration stopped{};
  Actions* out = nullptr;

  std::deque<Leaving> leaving;  // at most one for each member
  std::deque<Leaving> behind;   // the same
  std::uint64_t ping_sequence = 0;
  std::uint32_t orders = 0;  // the number of the last one, see base/messages.h
  // What ends the job as failed, at the end of this step; the first reason stands.
  std::optional<std::string> failure;
  bool waits_for_quorum = false;
  bool said_metric_left_out = false;  // once for the job
  Time edge_broke_at;                 // the latest time that two did not reach each other any more

  std::uint64_t parameter_bytes() const { return 4 * parameter_count; }
  double SinceStart(Time t) const { return Seconds(t + stopped - start.started); }

  // Messages to one worker arrive in the order in which they are sent, over one connection: a
  // worker never hears of a round before it has heard of the one before.
  void Send(const Member& to, msg::ToWorker message) {
    LOCKSTEP_CHECK(out != nullptr, "a message outside of a step");
    out->push_back(coordinator::Send{{to.connection},
                                     std::make_shared<const msg::ToWorker>(std::move(message))});
  }
  void Send(std::span<const MemberId> to, msg::ToWorker message) {
    Send(to, std::make_shared<const msg::ToWorker>(std::move(message)));
  }
  void Send(std::span<const MemberId> to, std::shared_ptr<const msg::ToWorker> message) {
    std::vector<ConnectionId> connections = members.Connections(to);
    if (!connections.empty()) {
      out->push_back(coordinator::Send{std::move(connections), std::move(message)});
    }
  }
  template <class... Args>
  void Log(LogLevel level, fmt::format_string<Args...> format, Args&&... args) {
    LOCKSTEP_CHECK(out != nullptr, "a line of the log outside of a step");
    out->push_back(LogLine{level, fmt::format(format, std::forward<Args>(args)...)});
  }
  // The member is out from now on; the others learn it at the end of this step.
  void Evict(Member& member, std::string reason, bool refuse = false) {
    if (!member.connected()) return;
    member.leaving = true;
    leaving.push_back({member.id, std::move(reason), refuse});
  }
  void Disconnected(Member& member, const std::string& reason) {
    if (!member.connected()) return;
    Evict(member, reason);
    leaving.back().disconnected = true;
  }
  void BrokeProtocol(Member& member, const std::string& what) {
    if (!member.connected()) return;
    Evict(member, "it broke the protocol: it " + what);
    leaving.back().broken = true;
  }
  // It is not live from now on, and catches up when it is heard. What it was last known to have it
  // still has, unless it is in doubt.
  void PutBehind(Member& member, std::string reason) {
    if (member.state == MemberState::kBehind || !member.connected()) return;
    LOCKSTEP_CHECK(behind.size() < members.slots(), "I7: {} members are put behind", behind.size());
    members.SetState(member, MemberState::kBehind, now);
    behind.push_back({member.id, std::move(reason)});
  }
  // Its parameters are not, or may not be, those that everybody has.
  void PutInDoubt(Member& member, std::string reason) {
    PutBehind(member, std::move(reason));
    member.in_doubt = member.state == MemberState::kBehind;
  }
  void Ping(const Member& member) {
    Send(member, msg::Ping{++ping_sequence, (now + stopped).time_since_epoch().count()});
  }
  void Ping(WorkerId worker) {
    if (members.at(worker).connected()) Ping(members.at(worker));
  }
  bool HeardSince(WorkerId worker, Time t) const {
    const Member& member = members.at(worker);
    return member.live() && member.last_heard >= t;
  }
  // An edge also breaks when an end of it dies; who has been heard since the last one broke has
  // not.
  bool HeardSinceEdgeBroke(WorkerId worker) const {
    return members.at(worker).last_heard > edge_broke_at;
  }
  // I5: so many are live that a round may be committed. Says when that changes.
  bool HasQuorum();
  // "; the job can be resumed from its checkpoint after round 7"; empty where there is none.
  std::string ResumeText() const;
  std::string QuorumText() const;
  // Behind what the job waits for: "; worker 2 is away: validation". Empty: all are there.
  std::string AwayText() const;
  // Nothing is lost by the end of a resumed job that has not closed a round: it waits as long as a
  // start does.
  Patience QuorumPatience() const;
  // The schedule's learning rate at `position`: updates of whole rounds that were made before. Not
  // finite: it has grown beyond the numbers, which RateNotFinite tells.
  float ScheduledRate(double position) const;
  std::string RateNotFinite(RoundId round) const;
  // Of a commit: workers take no other.
  Status CheckScalars(const msg::Commit& commit) const;
  void Fail(std::string reason) {
    if (!failure) failure = std::move(reason);
  }
};

// Why nobody who says this Hello can be in any job of this coordinator; empty: it can.
std::string OtherProtocol(const msg::Hello& hello);

}  // namespace lockstep::coordinator
