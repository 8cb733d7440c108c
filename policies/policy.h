// A straggler policy is a closing rule and a work rule. The closing rule says when a round closes,
// and over which parts. The work rule says who computes what, and what moves within a round. Rules
// are pure: a view and the time in, a verdict out. They propose; the coordinator disposes: it
// carries out what keeps the invariants and ignores the rest, so a wrong rule wastes time and never
// breaks a result. A rule object lives as long as its job's policy and is called by one thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "base/messages.h"
#include "base/time.h"

namespace lockstep::policies {

// A part as the coordinator knows it.
struct PartView {
  PartIndex part;
  std::uint64_t samples = 0;
  Time ready_at;
  std::optional<Time> delivered_at;  // every owner has it; only such parts can be committed
};

struct WorkerView {
  MemberId member;
  bool fenced = false;            // its contribution to this round is void
  std::uint32_t units_given = 0;  // in this round, less those revoked
  std::uint32_t units_done = 0;   // as last reported
  std::uint32_t units_taken = 0;
  std::uint32_t units_planned = 0;  // given at the start of the round
  std::uint64_t samples_given = 0;
  bool takes_units = false;  // can be given more units in this round
  bool revoking = false;     // it was asked to give units back and has not answered yet
  // In relaxed rounds: the round in which it was given its units, and whether it has applied all
  // rounds before this one. Without that its parts cannot be committed.
  RoundId base;
  bool level = true;
  // The time when units_done last rose. Before that, the time when it could begin, having applied
  // the previous round, or the round's start. And the weighted mean of the time between such events
  // in this round (zero before the first): how fast it is now.
  Time progressed_at;
  Duration pace{};
  Time last_heard;                  // any message
  std::optional<Time> finished_at;  // all of its units are sealed and delivered; set at the round's
                                    // start when it has no units
  std::vector<PartView> parts;
  // By position in its queue, and one more: what the units before it cost, in usual units. Empty:
  // each costs one, as far as anybody knows. Times per unit are those of a usual one.
  std::vector<double> cost_before;
  // Recent history: its time per unit, as the median of the means of its last three parts, and the
  // exponentially weighted distance of parts from that. Zero while nothing is known.
  Duration unit_time_mean{};
  Duration unit_time_deviation{};
  Duration unit_time_longest{};  // of one unit of its last sixteen parts
  // Its runs in this round, by the plan; a worker without units there takes as many as it can. They
  // are within most_in_run.
  RunLimit runs;
  // The most units in a run by the worker's own bound (its memory, say); 0: no bound.
  std::uint32_t most_in_run = 0;
  // Its sealed units: how long they took, as if they had the usual cost, and in how many runs.
  Duration computed{};
  std::uint32_t units_timed = 0;
  std::uint32_t runs_timed = 0;
  // Recent history: what a run takes beside its units, in unit times; none while runs of one length
  // are all that is known.
  std::optional<double> run_cost;
};

// Which workers of a round's view have changed, so that a rule can keep what it made of the others
// at its last look.
struct ViewChanges {
  // Another number: another list. All workers may have changed, and their places.
  std::uint64_t list = 0;
  std::vector<std::uint32_t> places;  // in RoundView::workers, one for each change, in their order
};

struct RoundView {
  RoundId round;
  Epoch epoch;
  Time now;
  Time started;
  // The last round of an epoch: it closes over all of its units; a verdict that leaves some out is
  // not carried out.
  bool exact = false;
  std::uint32_t configured_workers = 0;  // --workers
  std::uint32_t planned_workers = 0;     // had units when the round was planned
  // Counts over `workers`, so that a rule need not scan to say "not yet": workers with units that
  // are not fenced, and those of them with finished_at.
  std::uint32_t with_units = 0;
  std::uint32_t finished = 0;
  std::uint32_t pending_revokes = 0;  // workers with `revoking`
  // The verdict's reason is wanted even if the round does not close (status page, log). Otherwise
  // only a verdict that closes, moves or fences needs one: rules are called after each event and
  // formatting would dominate their cost.
  bool explain = false;
  std::uint64_t samples_planned = 0;
  // Those of them that can still come: without units that are left out, and without contributions
  // that are skipped as not finite. An exact round closes over all of these.
  std::uint64_t samples_wanted = 0;
  std::span<const WorkerView>
      workers;  // members that had units at the start or were given some, by ascending worker id
  // In an exact round: other live members that could be given units of it at once.
  std::uint32_t idle = 0;
  // Null: all workers may have changed since any other view.
  const ViewChanges* changes = nullptr;
};

struct PartChoice {
  WorkerId worker;
  PartIndex part;
  float weight = 1.0f;
};

struct ClosingVerdict {
  bool close = false;
  // Units that nobody has begun are taken back and left out of this round (they go back to the
  // sampler); workers seal what they have. Not carried out in an exact round.
  bool cut = false;
  std::vector<PartChoice> parts;  // when close: over which parts; a chosen part must be delivered
  Time look_again = kNever;       // when not: call again then, if no event comes before
  std::string reason;             // for people: "waiting for worker 3 (2 of 8 units done)"
};

class ClosingRule {
 public:
  virtual ~ClosingRule() = default;
  virtual std::string_view name() const = 0;
  // Called after each event of the round.
  virtual ClosingVerdict Judge(const RoundView& view) = 0;
  // Some workers of the round are lost and their units are unassigned; `view` is without
  // them. True: the rule can close without that work, it goes back to the sampler. False: it is
  // given to others within the round.
  virtual bool CanDoWithout(const RoundView& view) = 0;
  // The number of configured workers that the rule can spare for a whole job; the default of
  // job.min_workers follows (registry.h: DefaultMinWorkers).
  virtual std::uint32_t Spare() const { return 0; }
  // True if it leaves out single units, so that a round is better cut into many.
  virtual bool CutsUnits() const { return false; }
  // Called once for each committed round, with the view at its commit.
  virtual void OnCommitted(const RoundView& view) { (void)view; }
};

struct MoveUnits {
  WorkerId from;
  WorkerId to;
  std::uint32_t units = 0;
};

struct WorkVerdict {
  // Revoked from the tail of `from`; given to `to` once `from` has answered. All moves from one
  // worker are one revoke; it has one outstanding at a time.
  std::vector<MoveUnits> moves;
  std::vector<WorkerId> fence;  // void their contribution to this round, give their units away
  Time look_again = kNever;
  std::string reason;
};

class WorkRule {
 public:
  virtual ~WorkRule() = default;
  virtual std::string_view name() const = 0;
  // Shares `units` among the members at a round's start: one number each, with the sum `units`.
  virtual std::vector<std::uint32_t> Share(std::span<const WorkerView> members,
                                           std::uint32_t units) = 0;
  // Called after each event of the round, before the closing rule.
  virtual WorkVerdict Judge(const RoundView& view) = 0;
  // True if units move or are shared out by speed, so that a round is better cut into many.
  virtual bool PlacesUnits() const { return true; }
  virtual void OnCommitted(const RoundView& view) { (void)view; }
};

// Decides how many units each worker computes together.
class RunRule {
 public:
  virtual ~RunRule() = default;
  // Returns as many limits as members; `shares`: the units of each.
  virtual std::vector<RunLimit> Runs(std::span<const WorkerView> members,
                                     std::span<const std::uint32_t> shares) = 0;
  virtual void OnCommitted(const RoundView& view) { (void)view; }
};

struct Policy {
  std::string name;  // as configured: "backup+none"
  std::unique_ptr<ClosingRule> closing;
  std::unique_ptr<WorkRule> work;
  // Null: each worker's share is one run, which is right where no unit moves within a round. The
  // plan alone then says what is computed together, so the same plans give the same bits.
  std::unique_ptr<RunRule> runs = {};
  // Rounds are relaxed: contributions that a round closes without go on in the next one.
  bool relaxed = false;
  // A round is some steps of each worker on its own, then the average of the parameters.
  bool local = false;
  // For a plug-in, set by its loader: the exception that a rule threw, once one has. It ends the
  // job.
  std::shared_ptr<const std::string> threw = {};
};

}  // namespace lockstep::policies
