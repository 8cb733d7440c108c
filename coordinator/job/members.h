// The table of members: a slot for each of --workers, who holds it now, and what is known of it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "base/messages.h"
#include "base/slowdown_spec.h"
#include "base/time.h"
#include "coordinator/job/bit_matrix.h"
#include "coordinator/job/path_table.h"
#include "coordinator/job/records.h"
#include "coordinator/job/step_io.h"
#include "coordinator/job/unit_times.h"

namespace lockstep::coordinator {

// A run that a worker was in when the round went on without it. It ends the run before it applies
// the round, and that is all that is ever heard of how long the run took.
struct UnfinishedRun {
  RoundId round;
  Time since;
  double cost = 0;  // of its units, in usual ones
};

// Offset of a worker's monotonic clock, from the ping with the shortest way among the recent ones.
struct ClockOffset {
  Duration shortest = Duration::max();
  Duration worker_minus_ours{};
  void Add(Time sent, Time received, std::int64_t worker_ns);
  // Until the first ping is answered: that much, and the message's way, is what we know.
  void Guess(Time received, std::int64_t worker_ns) {
    if (shortest == Duration::max()) {
      worker_minus_ours = Duration(worker_ns) - received.time_since_epoch();
    }
  }
  Time ToOurs(std::int64_t worker_ns) const {
    return Time(Duration(worker_ns)) - worker_minus_ours;
  }
  std::int64_t ToTheirs(Time ours) const {
    return (ours.time_since_epoch() + worker_minus_ours).count();
  }
};

// The delay of a worker's messages to the coordinator, beyond that of an idle link. On a slow link
// they wait behind the worker's own bulk.
struct ResponseDelay {
  Duration mean{};
  void Add(Duration sample) { mean += (std::max(sample, Duration{}) - mean) / 4; }
};

// Totals over a worker's runs, whether they counted in a round or not. They include all processes
// that have had this slot, each with its last report.
struct RunTotals {
  std::uint64_t samples = 0;
  Duration took{};
  // The part of it spent waiting for samples; nullopt: no program has reported it.
  std::optional<Duration> waited;
  std::optional<std::uint64_t> ahead;  // samples that lay ready behind the last run
  // And those of a process whose runs have taken `most` at most.
  RunTotals With(const msg::RunTotals& process, Duration most) const;
};

// The record of a member as an owner. An owner that held up a round alone owns nothing until it has
// contributed to a later round, which shows that it is alive. Each further time the trial is twice
// as long: contributing says nothing about publishing, and each failure costs all members the whole
// patience. A failure is forgotten after as many published rounds as the last trial had.
//
// Invariants: on trial only with a failure that is not forgotten; published_ counts only off trial.
class OwnerTrial {
 public:
  void Fail(RoundId round);
  void OnContributed(RoundId round);
  void OnPublished();
  bool on() const { return left_ > 0; }
  std::uint32_t failures() const { return failures_; }  // that are not forgotten

 private:
  std::uint32_t Length() const;

  std::uint32_t failures_ = 0;
  std::uint32_t left_ = 0;       // rounds to contribute to
  RoundId counted_;              // the last one that was: it failed in it, or contributed to it
  std::uint32_t published_ = 0;  // rounds since the trial ended
};

// A worker's own report that its program does something else, until this time at most.
struct Absence {
  Time since;
  Time until;
  std::string reason;
};

// A slot, and who has it. kLost: nobody, and what stands here is of its last holder. With the next
// one all is new but the counts at the end, which are the slot's, for the summary.
struct Member {
  MemberId id;
  MemberState state = MemberState::kLost;  // written by Members alone
  ConnectionId connection;
  bool leaving = false;  // will be taken out at the end of this step
  // Why a member is lost or behind, for people.
  std::string out_because;
  std::string address;
  msg::Hello hello;
  msg::Ready ready;
  Time since;  // in this state
  Time last_heard;
  Time last_progress;  // units, or leave to begin with them; what liveness' patience counts from
  ClockOffset clock;
  std::vector<SlowdownSpec> slowdowns;  // that it was started with
  std::uint64_t resident_bytes = 0;     // of its process, as it said last; 0: it does not say

  std::uint64_t answered_ping = 0;  // the number of the last ping that it has answered

  std::uint32_t copy_order = 0;  // of the last CatchUp; 0: none
  // Was asked to leave: gets no units and owns nothing from the next plan on.
  bool draining = false;
  bool asked_to_leave = false;
  // No progress is expected of it; where work moves it gets none. Changed by Members alone.
  std::optional<Absence> absence;
  RoundId next;                        // the first round that is not in its parameters
  std::optional<RoundId> contributed;  // last commit that has a part of it
  OwnerTrial owner_trial;
  // The last commit that it was sent.
  std::optional<std::pair<RoundId, Attempt>> commit_sent;

  // The commit that it has applied, in state kBehindApplied.
  std::optional<std::pair<RoundId, Attempt>> applied_behind;
  // The number of the question that it was asked, in kBehindAsked and kBehindDenied.
  std::uint32_t fence_order = 0;

  UnitTimes unit_times;
  RunCost run_cost;                      // by its own runs
  std::optional<double> usual_run_cost;  // of all workers, at the last plan
  std::uint32_t longest_run = 1;         // units, by its last plan
  std::optional<UnfinishedRun> unfinished_run;
  ResponseDelay response;
  RunTotals runs;
  RunTotals runs_before;  // of the processes before this one
  std::uint64_t rounds_contributed = 0;
  std::uint64_t rounds_excluded = 0;
  Duration blocked_by_compute{};
  Duration blocked_by_data{};  // its units cost more than those of others
  Duration blocked_by_link{};
  Duration blocked_by_loss{};
  Duration would_have_blocked{};

  // The cost of a run, in unit times, is much the same for all workers. A worker that computes its
  // whole share as one run never learns its own cost. If that counted as nothing, its units would
  // seem slower the fewer it gets. Its own counts where it surely differs.
  std::optional<double> RunCostInUnits() const;

  bool behind() const { return IsBehind(state); }
  bool away() const { return absence.has_value(); }
  bool live() const { return state == MemberState::kLive && !leaving; }
  // Takes part in exchanges: applies the sums.
  bool exchanging() const {
    return !leaving && (state == MemberState::kLive || state == MemberState::kCatchingUp);
  }
  bool connected() const { return state != MemberState::kLost && !leaving; }
  // Counts for the quorum, however late it is.
  bool present() const { return exchanging() || (!leaving && behind()); }
};

// A worker this many times slower than the median is reported as slow to programs and people.
// Policies judge for themselves.
inline constexpr double kMuchSlower = 1.5;

class Members {
 public:
  explicit Members(std::uint32_t slots);

  // A free slot for a newcomer: the one it wants, else one that nobody had, else any. Null: none.
  Member* TakeSlot(std::optional<WorkerId> wanted, ConnectionId connection, Time now);
  // Frees the slot; counts and history of the slot stay for the summary.
  void Free(Member& member, Time now);
  // Every change of state comes through here.
  void SetState(Member& member, MemberState state, Time now);
  // nullopt: it is there.
  void SetAbsence(Member& member, std::optional<Absence> absence);

  Member& at(WorkerId worker) { return members_[worker.value]; }
  const Member& at(WorkerId worker) const { return members_[worker.value]; }
  // Null when it is not that incarnation that holds the slot, or it is leaving.
  Member* Find(const MemberId& id);
  Member* Find(ConnectionId connection);
  std::span<Member> all() { return members_; }
  std::span<const Member> all() const { return members_; }
  std::uint32_t slots() const { return static_cast<std::uint32_t>(members_.size()); }

  // Sets the usual cost of a run: the median over the members, as far as it is not by chance.
  void NoteUsualRunCost();

  std::uint32_t CountLive() const { return Count(MemberState::kLive); }
  std::uint32_t Count(MemberState state) const { return counts_[static_cast<std::size_t>(state)]; }
  std::uint32_t CountBehind() const { return behind_; }
  std::uint32_t CountAway() const { return away_; }
  // Members that the job has: live, behind or catching up. A quorum (I5) is counted in these: it
  // guards against the loss of workers, and a late worker is not lost.
  std::uint32_t CountPresent() const {
    return CountLive() + CountBehind() + Count(MemberState::kCatchingUp);
  }
  std::vector<MemberId> Exchanging() const;  // ascending
  std::vector<ConnectionId> Connections(std::span<const MemberId> of) const;

  // Notes what `from` reports of its path to `to`.
  void SetPath(WorkerId from, const PeerPath& path);
  // Each of the two has mapped the other's arena.
  bool Mapped(WorkerId a, WorkerId b) const { return mutual_.Test(a.value, b.value); }
  const BitMatrix& mapped() const { return mutual_; }
  // All of them, for the summary. In a job of more than kSummaryUpTo workers only the slowest
  // measured one of each: four thousand have sixteen million.
  static constexpr std::uint32_t kSummaryUpTo = 1024;
  std::vector<PathRecord> Paths() const;
  // The measured paths between present members, for people who watch. In a job of more than
  // kAllPathsUpTo workers only the slowest of each: a thousand paths and not a million.
  static constexpr std::uint32_t kAllPathsUpTo = 32;
  std::vector<PathRecord> MeasuredPaths() const;
  // There are paths, and all are mapped memory.
  bool AllMapped() const { return paths_.AllMapped(); }
  double SlowestPath() const;  // bytes a second; 0: none was measured
  // Returns live workers whose recent mean unit time is at least kMuchSlower times the median;
  // ascending. Of two in the middle the quicker one is the median.
  std::vector<WorkerId> Slow() const;
  // Compares this member's time per sample with the median of the others. True when waiting for
  // samples is more than half of the excess: its disk or its loader is slow.
  bool IsSlowAtReading(const Member& member) const;

  // Two that reach the coordinator and not each other. False when that was known.
  bool AddBrokenEdge(WorkerId a, WorkerId b);
  bool AnyBroken() const { return any_broken_; }
  bool Broken(WorkerId a, WorkerId b) const { return broken_.Test(a.value, b.value); }
  std::uint32_t BrokenEdges(WorkerId worker) const;  // to members that exchange
  void MendEdge(WorkerId a, WorkerId b);
  void MendEdges(WorkerId worker);  // all of its own
  // A broken edge that is being made again: who has to go is not asked yet.
  void SetMending(WorkerId a, WorkerId b, bool mending);
  bool Mending(WorkerId a, WorkerId b) const { return mending_.Test(a.value, b.value); }
  bool AnyMending(WorkerId worker) const;

  // The counts against a recount, and what goes with a state.
  void CheckInvariants(Time now) const;

  // The median of the members' mean unit times; zero when nothing is known.
  Duration MedianUnitTime() const;

 private:
  void ForgetPeers(WorkerId worker);
  void LookForBroken();

  std::vector<Member> members_;                               // by slot
  std::vector<Incarnation> last_incarnation_;                 // by slot; grows with each holder
  std::unordered_map<ConnectionId, WorkerId> by_connection_;  // of members that are connected
  std::uint32_t away_ = 0;                                    // connected members with an absence
  std::array<std::uint32_t, kMemberStates> counts_{};         // their sum is the number of slots
  std::uint32_t behind_ = 0;                                  // in one of the states IsBehind
  BitMatrix mapped_;                                          // [who says it][peer]
  BitMatrix mutual_;                                          // both say it
  BitMatrix broken_;   // symmetric; of members that are there
  BitMatrix mending_;  // the same; of broken edges
  bool any_broken_ = false;
  PathTable paths_;
  std::uint32_t fresh_from_ = 0;  // all slots below have been held
};

}  // namespace lockstep::coordinator
