// The coordinator's reports: plain values for the run directory, the progress line and HTTP. Times
// are seconds since the job's start (StartParameters::started); they speak of closed rounds only,
// except JobStatus.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "base/messages.h"

namespace lockstep::coordinator {

struct AttemptRecord {
  Attempt attempt;
  std::string reason;  // why it was made: the closing rule's words, or what ended the one before
};

struct ContributorRecord {
  WorkerId worker;
  PartIndex part;
  float weight = 1;
  std::uint64_t samples = 0;
  std::vector<SampleRange> ranges;  // ascending, merged
  // In a relaxed round: commits since the work was given out.
  std::optional<std::uint64_t> staleness = std::nullopt;
  // Outliers uses them; they are in no file.
  std::uint64_t divisor = 0;
  std::optional<double> sampled_squares = std::nullopt;
};

// Units that were computed together and one after the other, in equal times: of units that are
// computed as one batch more is not known.
struct UnitRecord {
  WorkerId worker;
  SampleRange range;
  double start = 0;
  double end = 0;
  // The number of these units, and of the units in their run: units <= run.
  std::uint64_t units = 1;
  std::uint64_t run = 1;
};

// Contributions of a worker that were not finite; in RoundRecord::dropped, too.
struct SkippedRecord {
  WorkerId worker;
  std::vector<SampleRange> ranges;
};

struct MoveRecord {
  WorkerId from;
  WorkerId to;
  SampleRange range;
};

struct DigestRecord {
  std::uint32_t slice = 0;
  std::uint64_t value = 0;
  std::uint32_t agreeing = 0;  // members that reported it
};

// Bytes of contributions that went to other workers; none where they are read in mapped memory.
struct SentRecord {
  std::uint64_t bytes = 0;
  std::uint64_t early_bytes = 0;  // of these, before their worker had sealed its part
};

// This is one line of rounds.jsonl.
struct RoundRecord {
  RoundId round;
  Epoch epoch;
  std::vector<AttemptRecord> attempts;
  ExchangeAlgorithm algorithm = ExchangeAlgorithm::kDirect;  // of the last attempt
  std::string policy;
  std::string reason;  // of the closing verdict
  std::vector<ContributorRecord> contributors;
  std::vector<UnitRecord> units;
  std::vector<WorkerId> excluded;  // had units, are not in the commit
  std::vector<WorkerId> carried;   // their work went on in the next round
  std::vector<MoveRecord> moved;
  // Left out, and never counted: there is no further round, or they were skipped.
  std::vector<SampleRange> dropped;
  std::vector<SkippedRecord> skipped;  // by worker
  std::vector<SampleRange> requeued;   // left out, given back to the sampler
  double loss = 0;                     // mean over the included samples
  std::vector<Metric> metrics;         // that the programs have logged
  std::uint64_t samples = 0;
  std::optional<std::uint64_t> divisor;  // of the gradient's mean, where that is not the samples
  std::uint64_t update = 0;
  float learning_rate = 0;
  SentRecord sent;  // by the committed parts
  // Seconds that these workers' runs waited for samples, if they report it.
  std::map<WorkerId, double> input_wait;
  double start = 0;
  std::map<WorkerId, double> sending;    // the last part, where any of it was sent early
  std::map<WorkerId, double> ready;      // of the last part
  std::map<WorkerId, double> delivered;  // of the last part
  double commit = 0;
  std::optional<double> applied;  // by the last member, if that is known when the round closes
  std::optional<DigestRecord> digest;
};

struct EvaluationRecord {
  RoundId round;
  Epoch epoch;
  std::uint64_t samples = 0;
  double loss = 0;
  double accuracy = 0;  // 0..1
};

// kHandedOver: this coordinator has ended, and the job has not. Its workers have left it while it
// stood still, and look for the next one.
enum class JobOutcome : std::uint8_t { kCompleted, kInterrupted, kFailed, kHandedOver };
std::string_view Name(JobOutcome outcome);

struct PathRecord {
  WorkerId from;
  WorkerId to;
  std::string path;
  double gb_per_second = 0;
};

struct StragglerRecord {
  WorkerId worker;
  double held_up_seconds = 0;  // how long rounds waited for it after their median contributor
  // The further time that they would have waited, had it been left to compute an equal share.
  double would_have_held_up_seconds = 0;
  // The largest cause of that time: "link", "lost", "data", "compute" or "input". "data": its units
  // cost more than those of the others. It is "input" instead of "compute" when waiting for samples
  // is more than half of the worker's excess over the others.
  std::string kind;
};

struct Totals {
  std::uint64_t rounds = 0;  // closed
  std::uint32_t epochs = 0;  // finished
  std::uint64_t samples_counted = 0;
  std::uint64_t samples_dropped = 0;
  std::uint64_t samples_requeued = 0;
  std::uint64_t samples_moved = 0;
};

// The totals of a resumed job at its checkpoint; zero in any other job.
struct Resumed {
  Totals totals;
  std::uint64_t updates = 0;
};

// Audits of this coordinator's start (audit.share).
struct AuditRecord {
  std::uint64_t units = 0;      // that were computed by two workers or more
  std::uint64_t differed = 0;   // of these
  std::vector<WorkerId> wrong;  // were put out
  bool operator==(const AuditRecord&) const = default;
};

// Where wrong gradients were computed: host, its id, and device.
using WrongDevices = std::set<std::array<std::string, 3>>;

// A job on virtual time.
struct SimulatedRecord {
  std::string exchange;  // "full" or "modelled"
  std::uint64_t seed = 0;
};

// Tells real times from artificial ones: the figures of such a run are called emulated.
struct Emulation {
  double unit_seconds = 0;             // emulate.unit_time
  std::vector<std::string> slowdowns;  // that were asked for, each with the worker it is for
  bool any() const { return unit_seconds > 0 || !slowdowns.empty(); }
};

// summary.json.
struct JobResult {
  JobOutcome outcome = JobOutcome::kCompleted;
  std::string reason;
  std::string policy;
  ExchangeAlgorithm algorithm = ExchangeAlgorithm::kDirect;  // that was chosen last
  std::string algorithm_reason;
  std::uint32_t workers = 0;  // --workers
  Totals totals;
  double wall_seconds = 0;
  std::optional<double> train_loss;  // of the last closed round
  std::vector<Metric> metrics;       // of it
  std::optional<double> test_accuracy;
  std::optional<double> test_loss;
  std::string dataset_digest;               // empty when the workers had not agreed on one
  std::string params_digest;                // empty when nobody reported one
  std::vector<WorkerId> digest_differs;     // whose final parameters were outvoted
  std::optional<RoundId> checkpoint_round;  // the newest checkpoint is that after this round
  std::string transport;
  std::vector<PathRecord> paths;
  std::vector<StragglerRecord> stragglers;  // the worst first
  double saved_seconds = 0;
  SentRecord sent;                   // in closed rounds
  std::optional<AuditRecord> audit;  // with audit.share above 0
  std::optional<SimulatedRecord> simulated;
  Emulation emulation;
};

enum class Phase : std::uint8_t { kGathering, kForming, kTraining, kEnding, kFinished };
std::string_view Name(Phase phase);

//   lost --> joining --> ready <--> forming --> live --> behind
//                                      |         ^       |  ^
//                                      |         |       v  |
//                                      `-------> catching up
//
// Of those behind:
//
//   behind --> asked --> denied
//     `----------`---------`-----> applied
//     `----------`---------`----------`-----> in doubt
//
// While nobody is live, members in denied or applied may be readmitted. Any state may become lost.
enum class MemberState : std::uint8_t {
  kJoining,     // has been welcomed
  kReady,       // has its data and transports open; waits to be formed
  kForming,     // connects to its peers
  kCatchingUp,  // copies state
  kLive,        // level
  // Waits for a chance to catch up. Its parameters are the common ones after round `next` - 1.
  kBehind,
  kBehindAsked,    // the same; was asked whether it holds what it was told
  kBehindDenied,   // the same; has promised not to apply that
  kBehindApplied,  // has applied a commit since it is behind (Member::applied_behind)
  kBehindInDoubt,  // its parameters may be those of nobody else
  kLost,           // its slot is free
};
inline constexpr std::size_t kMemberStates = 11;
constexpr bool IsBehind(MemberState state) {
  return state >= MemberState::kBehind && state <= MemberState::kBehindInDoubt;
}
bool MayBecome(MemberState from, MemberState to);
// All states of members that are behind have one name.
std::string_view Name(MemberState state);

struct MemberStatus {
  MemberId member;
  MemberState state = MemberState::kLost;
  std::string host;
  std::uint64_t pid = 0;
  std::string device;
  std::uint32_t units_given = 0;  // in the open round
  std::uint32_t units_done = 0;
  double unit_seconds = 0;  // recent mean
  double silent_seconds = 0;
  std::uint64_t resident_bytes = 0;  // memory of its process; 0: it has not said
  double run_seconds = 0;            // that its runs have taken
  // The part of it spent waiting for samples, and the samples that were ready after the last run.
  // Only if its program reports them.
  std::optional<double> input_wait_seconds;
  std::optional<std::uint64_t> samples_ahead;
  // The norm of its gradients over the median worker's (Outliers).
  std::optional<double> gradient_times;
  std::uint64_t rounds_contributed = 0;
  std::uint64_t rounds_excluded = 0;
  double held_up_seconds = 0;
  double held_up_by_data_seconds = 0;  // the part of it that is due to costly units
  bool owner = false;                  // of the open round
  bool draining = false;               // was asked to leave
  std::string away;                    // what its program does instead; empty: it is there
};

struct JobStatus {
  std::string job_id;  // drawn at this start of the coordinator
  Phase phase = Phase::kGathering;
  Epoch epoch;
  RoundId round;  // open
  std::uint64_t updates = 0;
  std::optional<double> loss;   // of the last closed round
  std::vector<Metric> metrics;  // of it
  std::optional<double> test_accuracy;
  double samples_per_second = 0;   // recent
  std::uint32_t contributors = 0;  // of the last commit
  std::uint32_t excluded = 0;
  std::uint32_t workers = 0;      // slots of the job
  std::uint32_t taking_part = 0;  // live, and not left out of the last commit
  std::string policy;
  std::string transport;
  std::string reason;       // why the last round closed, in the policy's words
  std::string waiting_for;  // who is slow and why, in words; empty when nobody is waited for
  std::vector<std::string> warnings;  // about the job's numbers, as long as they stand
  std::optional<AuditRecord> audit;   // with audit.share above 0
  double seconds = 0;                 // since the job's start
  Emulation emulation;                // with the slow-downs that are in force
  Totals totals;
  Resumed resumed;
  std::vector<MemberStatus> members;  // every slot that was ever taken
};

}  // namespace lockstep::coordinator
