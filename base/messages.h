// The control plane's messages between coordinator and workers, as plain values. The pure cores
// speak these; transport/control/ turns them into Protocol Buffers and back.
// docs/reference/protocol.md tells when each is sent.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "base/digest.h"
#include "base/ids.h"
#include "base/metric.h"
#include "base/time.h"

namespace lockstep {

// The version of the control and data protocols together; a worker of another version is refused at
// join.
inline constexpr std::uint32_t kProtocolVersion = 2;
// The longest that a worker may say it will be away (msg::Away).
inline constexpr Duration kMostAbsence = std::chrono::hours(24);

// Half-open range of positions in the epoch's sample order.
struct SampleRange {
  std::uint64_t from = 0;
  std::uint64_t to = 0;
  std::uint64_t size() const { return to - from; }
  std::uint64_t begin() const { return from; }
  std::uint64_t end() const { return to; }
  static SampleRange Between(std::uint64_t from, std::uint64_t to) { return {from, to}; }
  auto operator<=>(const SampleRange&) const = default;
};

// The number of samples in all of them.
inline std::uint64_t SizeOf(const std::vector<SampleRange>& ranges) {
  std::uint64_t samples = 0;
  for (const SampleRange& range : ranges) samples += range.size();
  return samples;
}

// The smallest work that moves. `index` is unique within the round.
struct Unit {
  UnitIndex index;
  SampleRange range;
  bool operator==(const Unit&) const = default;
};

struct OwnerShare {
  MemberId owner;
  std::uint32_t weight = 1;  // relative size of its shard, > 0
  bool operator==(const OwnerShare&) const = default;
};

// The holders of one shard: its owner first, each member once.
struct ShardHolders {
  std::vector<MemberId> members;  // at least one
  bool operator==(const ShardHolders&) const = default;
};

// How the sums of a round are computed (base/routes.h).
enum class ExchangeAlgorithm : std::uint8_t {
  kDirect,  // owners fetch their shard of every part, before the commit, and members the sums
  // After the commit, partial sums go from contributor to contributor, and the sums go back.
  kRing,  // along all of them
  kTree,  // up two trees, each for half of the parameters
};

// The owner of each slice: the same pure function of (map, layout) cuts the buckets everywhere
// (worker/layout/layout.h).
struct OwnerMap {
  std::uint32_t version = 0;       // grows within a round with each new map
  std::vector<OwnerShare> owners;  // by ascending worker id, at least one
  // The holders of each shard, where each worker holds only a part of the optimizer's state
  // (optimizer.replicas). The shards are of equal size, and `owners` lists the owners of at least
  // one, each with its number of shards. Empty: every member holds everything, and shards are cut
  // by weight.
  std::vector<ShardHolders> holders = {};
  // An algorithm other than direct is only for the plan of a round and its first commit. The owners
  // of that commit are the contributors at which the routes of the partial sums end.
  ExchangeAlgorithm algorithm = ExchangeAlgorithm::kDirect;
  bool direct() const { return algorithm == ExchangeAlgorithm::kDirect; }
  bool operator==(const OwnerMap&) const = default;
};

// A run is consecutive units of a member's queue that it computes together, as one batch. The
// member takes them at once, so none of them can be given back until the run is done.
struct RunLimit {
  std::uint32_t units = 0;  // units of a run at most; 0: no limit
  bool guided = false;      // and no more than half of what is left (guided self-scheduling)
  bool operator==(const RunLimit&) const = default;
};

// How many of the `left` units of its queue a member takes next.
inline std::uint32_t NextRun(std::uint32_t left, const RunLimit& limit) {
  const std::uint32_t units = limit.guided ? left - left / 2 : left;
  return limit.units > 0 && limit.units < units ? limit.units : units;
}

// The largest run that a member can compute, because of its memory or because its batches must have
// one size. It holds for its runs whatever their limit is. A run has one unit at least. 0: no
// bound.
struct RunBound {
  std::uint64_t samples = 0;
  std::uint32_t units = 0;
  bool operator==(const RunBound&) const = default;
};

// The most units of a run, where so many units have so many samples; 0: no bound.
inline std::uint32_t MostInRun(const RunBound& bound, std::uint32_t units, std::uint64_t samples) {
  if (bound.samples == 0 || bound.samples >= samples) return bound.units;
  const auto fit = static_cast<std::uint32_t>(bound.samples * units / samples);
  const std::uint32_t most = fit > 0 ? fit : 1;
  return bound.units > 0 && bound.units < most ? bound.units : most;
}

// The limit with at most `most` units in a run; 0: the limit is unchanged.
inline RunLimit Within(RunLimit limit, std::uint32_t most) {
  if (most > 0 && (limit.units == 0 || most < limit.units)) limit.units = most;
  return limit;
}

struct Assignment {
  MemberId member;
  std::vector<Unit> units;  // in the order of computation
  RunLimit runs = {};
  bool operator==(const Assignment&) const = default;
};

// A unit that other workers compute as well, to find out who computes a wrong gradient
// (audit.share). It is the first one of a member's assignment. Each of them says what came out
// (msg::Audited).
struct Audit {
  MemberId subject;  // its gradient counts
  Unit unit;
  // They compute it before their own work, and it counts for nothing. A member is named in one
  // audit of a plan at most.
  std::vector<MemberId> by;
  bool operator==(const Audit&) const = default;
};

struct Plan {
  RoundId round;
  Epoch epoch;
  std::vector<Assignment> assignments;  // by ascending worker id; a member without units is absent
  OwnerMap owners;
  // All members that take part in this round's exchange and apply its sums, ascending. They include
  // members without units and members that are catching up.
  std::vector<MemberId> members;
  // Units of this round are computed with a copy of the parameters, made when the work begins, so
  // that later rounds are applied meanwhile (policy `async`).
  bool relaxed = false;
  // Set for a relaxed round after another one: work that was begun there and is in no part of its
  // commit continues as work of this round. A member with such work gets no new units.
  bool carries = false;
  // The rate of the local steps (policy `local`); 0 in all other rounds.
  float local_rate = 0;
  // The attempt of the commit that brought this plan. A later attempt there brings another plan of
  // this round, and nothing that was computed for the earlier plan counts.
  Attempt attempt;
  // The position in the learning rate's schedule before this round, in updates of whole rounds;
  // updates that were made may be fractions.
  double position = 0;
  std::vector<Audit> audits = {};  // by ascending subject
  bool operator==(const Plan&) const = default;
};

struct CommittedPart {
  MemberId member;
  PartIndex part;
  float weight = 1.0f;
  std::uint64_t samples = 0;
  bool operator==(const CommittedPart&) const = default;
};

struct PeerInfo {
  MemberId member;
  std::string data_address;     // of the job's transport
  std::string mapping_address;  // empty: mapping is off or cannot be had
  std::string host_id;          // equal host ids: worth trying to map
  bool operator==(const PeerInfo&) const = default;
};

// The source of the parameters and optimizer state of this worker.
enum class StateSource : std::uint8_t {
  kSeed,        // initial parameters out of the job's seed
  kCheckpoint,  // StateChunks follow before Start; `Start.plan.round` continues after them
  kPeers,       // CatchUp follows
  kGiven,       // one worker's parameters (GiveParameters), with empty optimizer state; all others
                // got them as StateChunks before Start.
  kHeld,        // the state that this worker said that it holds (Ready::held)
};

// The parameters and optimizer state that a worker has kept from an earlier coordinator: those
// before round `next`. They are the same bits wherever term, round and attempt are the same.
struct HeldParameters {
  Term term;
  RoundId next;
  // The attempt of the commit of round next - 1, which is the newest one in them; none: nothing was
  // committed since that term's Start.
  std::optional<Attempt> attempt;
  bool operator==(const HeldParameters&) const = default;
};

struct TransportOffer {
  std::string name;     // "ucx", "tcp"
  std::string address;  // empty: not available
  std::string error;    // why not
  bool operator==(const TransportOffer&) const = default;
};

// A named run of parameters, in model order. Checkpoints have it for other programs.
struct TensorInfo {
  std::string name;
  std::vector<std::uint64_t> shape;  // its product is the number of values
  bool operator==(const TensorInfo&) const = default;
};

struct PeerPath {
  MemberId peer;
  bool reached = false;
  std::string error;  // when not reached
  bool mapped = false;
  std::string path;  // in words: "mapped", "ucx: tcp/eth0", "tcp"
  double gb_per_second = 0;
  bool operator==(const PeerPath&) const = default;
};

struct UnitTiming {
  Unit unit;
  std::int64_t start_ns = 0;  // worker's monotonic clock
  std::int64_t end_ns = 0;
  bool operator==(const UnitTiming&) const = default;
};

struct ReceivedPart {
  MemberId member;
  PartIndex part;
  bool operator==(const ReceivedPart&) const = default;
};

// The count of a run or a part may be something other than samples (Sealed::divisor). A part has at
// most 2^16 runs, a commit at most 2^13 parts: sums stay within 64 bits.
inline constexpr std::uint64_t kMaxRunDivisor = std::uint64_t{1} << 31;
inline constexpr std::uint64_t kMaxPartDivisor = std::uint64_t{1} << 47;

namespace msg {

// --- coordinator -> worker
// -------------------------------------------------------------------------------------------

// This answers Hello. The worker opens its data, builds its model and its transports, then sends
// Ready.
struct Welcome {
  MemberId self;
  Term term;
  std::string job_id;
  std::vector<std::byte> job_key;  // 32 bytes, see transport::Options
  std::string config_text;         // the job's effective config, INI
  std::uint32_t workers = 0;       // of the job (--workers)
  std::int64_t age_ns = 0;         // of the job when this was sent; slow-downs count from it
  // The id of the run directory: it is the same for each coordinator that continues the job.
  std::string run_id = {};
  // The run directory, as a path on the coordinator's host. A worker that reaches it there saves
  // its parameters in it when no coordinator takes over. Empty: there is none.
  std::string run_dir = {};
  std::vector<std::string> standbys = {};  // see Standbys
  // With optimizer.replicas: the newest state that the coordinator before has decided on. Some
  // holders may not have heard of that (Decide); the commit of its last round was sent to all.
  std::optional<HeldParameters> decided = std::nullopt;
  bool takes_costs = false;  // msg::Costs
  bool operator==(const Welcome&) const = default;
};

// The coordinator does not take this worker; the connection is closed afterwards. The reason is one
// line.
struct Refuse {
  std::string reason;
  // A later try may succeed: after a while (a slot is not free yet) or when the job runs again.
  bool try_again = false;
  bool operator==(const Refuse&) const = default;
};

// Take `transport` and connect to each of `connect_to`; the members of `expect` will connect to
// you. The worker answers with Reached. Form is sent again with another transport when the first
// was not possible, and then everything built up before is dropped. It is also sent to a later
// joiner.
struct Form {
  std::uint32_t formation = 0;  // counts the tries
  std::string transport;
  std::vector<PeerInfo> connect_to;
  std::vector<PeerInfo> expect;
  bool operator==(const Form&) const = default;
};

struct MemberLeft {
  MemberId member;
  std::string reason;
  bool operator==(const MemberLeft&) const = default;
};

struct Start {
  StateSource source = StateSource::kSeed;
  // The first round to compute. For kPeers it is the plan of the open round, in which the worker
  // has no units. Start is also sent when that round begins again, with a plan of a higher attempt.
  Plan plan;
  std::uint64_t total_samples_before = 0;
  // As in Commit, of the state before plan.round. Only where no round follows, and the coordinator
  // that committed the last one is gone. Sent to live workers, with kPeers, behind their first one.
  std::optional<MemberId> checkpoint_writer = std::nullopt;
  std::uint32_t evaluation = 0;
  bool operator==(const Start&) const = default;
};

// The coordinator's decision on a round. It closes the round before it. It carries all scalars of
// the update, computed once.
struct Commit {
  Term term;
  RoundId round;
  Attempt attempt;
  Epoch epoch;
  std::vector<CommittedPart> parts;  // in order of summation: worker id, then part; at least one
  OwnerMap owners;
  std::vector<MemberId> members;  // who applies
  std::uint64_t samples = 0;      // included
  float scale = 0;                // 1 / samples, rounded once
  float learning_rate = 0;        // by the schedule
  float fraction = 1;             // of a step: samples / global_batch with linear scaling, else 1
  std::uint64_t update = 0;       // 1-based count of updates
  std::uint64_t steps = 0;        // sum of all fractions so far, this one included, rounded up
  std::optional<Plan> next;       // of round + 1; absent in the last round
  std::optional<MemberId> checkpoint_writer;  // streams its state after this round (StateUpload)
  std::uint32_t evaluation =
      0;  // non-zero: the state after this round is evaluated, under this id (see Evaluate)
  double loss = 0;                   // mean over the included samples
  std::vector<Metric> metrics = {};  // of all parts together
  // Facts for the program, as of the time when the round was closed. They are the policy in force,
  // and the workers whose units take much longer than usual, ascending.
  std::string policy = {};
  std::vector<std::uint64_t> slow = {};
  double position = 0;  // of the schedule before this round (Plan)
  bool operator==(const Commit&) const = default;
};

// Revoke, Assign, FenceRound, FenceAttempt and CatchUp are orders, which the coordinator numbers;
// it never uses a number twice. Answers name the order, so that an old answer is not taken for one
// to a later order. Both ends also count the same units: a worker that answers an order knows all
// earlier messages, and none of the later ones.

// Give back all units that are not yet begun, from queue position `from` on. Positions count the
// units given to this worker in this round, less those that were given back or refused.
struct Revoke {
  RoundId round;
  std::uint32_t from = 0;
  std::uint32_t order = 0;
  bool operator==(const Revoke&) const = default;
};

// Compute more units in this round, behind those that you have. The worker refuses with Revoked
// when both parts are sealed, or when their sealing has begun.
struct Assign {
  RoundId round;
  std::vector<Unit> units;
  std::uint32_t order = 0;
  bool operator==(const Assign&) const = default;
};

// Nothing that you computed for this round counts; its units were given to other workers.
struct FenceRound {
  RoundId round;
  std::uint32_t order = 0;
  bool operator==(const FenceRound&) const = default;
};

// A new owner map for a round that is not yet committed. A round begins again when no contribution
// to it is left, or when nobody has a part left for it. Start announces that instead, with another
// plan of the round. Nothing that was computed for it before counts, and its units follow by
// Assign.
struct NewOwners {
  RoundId round;
  OwnerMap owners;
  bool operator==(const NewOwners&) const = default;
};

// Answer whether you hold all shards of this attempt. "No" is a promise: you will not apply it
// unless TakeSums says so.
struct FenceAttempt {
  Term term;
  RoundId round;
  Attempt attempt;
  std::uint32_t order = 0;
  bool operator==(const FenceAttempt&) const = default;
};

// `owner` has not published its shard of this attempt, and others have published theirs. `by` makes
// the same sums from the same parts and publishes them too; all members take whichever comes first.
// It is sent to all members and takes back no earlier message. With optimizer.replicas: `owner`
// does not answer, so members take its shard from another holder; `by` is another member.
struct Hedge {
  Term term;
  RoundId round;
  Attempt attempt;
  MemberId owner;
  MemberId by;
  bool operator==(const Hedge&) const = default;
};

// The valid attempt of commit.round is commit.attempt: fetch all shards from `holder` (or use your
// own). It ends earlier promises about this attempt.
struct TakeSums {
  Commit commit;
  MemberId holder;
  bool operator==(const TakeSums&) const = default;
};

// All holders of this attempt's shards have said Held: the attempt stands, whatever happens.
// Holders now update their shards.
struct Decide {
  RoundId round;
  Attempt attempt;
  bool operator==(const Decide&) const = default;
};

inline constexpr std::size_t kMostDonors = 4;

// Your parameters are not those of the last closed round: copy state, slice by slice, from `donor`
// and from the others in turn, then follow.
struct CatchUp {
  MemberId donor;
  RoundId open_round;  // commits of this and later rounds will reach you
  std::uint32_t order = 0;
  std::vector<MemberId> others = {};  // at most kMostDonors - 1
  bool operator==(const CatchUp&) const = default;
};

// Evaluate these test samples with the parameters after round `round`. The worker does it when it
// has nothing else to do.
struct Evaluate {
  std::uint32_t evaluation = 0;
  RoundId round;
  SampleRange range;
  bool operator==(const Evaluate&) const = default;
};

// State of a checkpoint, in order, in both directions: to the worker at resume, and to the
// coordinator from a worker that was asked to write.
struct StateChunk {
  RoundId round;             // state after this closed round
  std::uint32_t tensor = 0;  // 0: parameters; 1..: optimizer state, in the optimizer's order
  std::uint64_t offset = 0;  // bytes, into the flat tensor
  bool last = false;         // of the whole state
  std::vector<std::byte> bytes;
  bool operator==(const StateChunk&) const = default;
};

// The job is over: report Final and leave. An empty `error` means that the job ended as it should.
struct Finish {
  std::string reason;
  bool failed = false;
  bool early = false;  // there were rounds to come
  bool operator==(const Finish&) const = default;
};

// The slow-downs of this worker from now on, which replace all earlier ones.
struct SetSlowdown {
  std::string specs;  // one SPEC of the command line in each line; empty: none
  bool operator==(const SetSlowdown&) const = default;
};

// Somebody wants this worker to leave the job, as with SIGTERM: Leave follows. It is sent when no
// round needs the worker.
struct AskToLeave {
  std::string reason;
  bool operator==(const AskToLeave&) const = default;
};

struct Ping {
  std::uint64_t sequence = 0;
  std::int64_t sent_ns = 0;  // the sender's monotonic clock
  bool operator==(const Ping&) const = default;
};

// Sent before Start, where each worker has parameters of its own (Ready::own_parameters): those of
// this worker are to become everybody's. It sends Given in order, from the first byte on, until it
// has sent `upto` bytes; when `upto` grows, it continues. The others get them as StateChunks of
// tensor 0, and report the bytes that they have stored, as for a checkpoint. The chunks begin again
// when another worker gives its parameters. While the first round is open, the worker is asked
// again for newcomers: its parameters are still the initial ones.
struct GiveParameters {
  std::uint32_t giving = 0;  // its number; a higher one begins at the first byte
  std::uint64_t upto = 0;
  bool operator==(const GiveParameters&) const = default;
};

// The most standbys that a worker is told of.
inline constexpr std::size_t kMaxStandbys = 8;

// The coordinators that follow this one and may take over, "HOST:PORT" each: all of them, in place
// of those that were named before.
struct Standbys {
  std::vector<std::string> addresses;
  bool operator==(const Standbys&) const = default;
};

// To a standby: the parts that it needs to take over, in their order. Records go only to a standby
// with a folder of its own. With the journal it is complete. Then each new line follows as it is
// written.
struct Followed {
  enum class Part : std::uint8_t {
    kJob,          // JSON: "workers" and "config", the effective config as INI
    kRounds,       // whole lines to append to rounds.jsonl
    kEvaluations,  // likewise to evaluations.jsonl
    kJournal,      // the journal so far, whole
    kEntry,        // the next line of the journal
    kWithout,      // the job goes on without this standby; the reason
    kEnded,        // the job has ended: summary.json
  };
  std::uint64_t sequence = 0;  // of the messages to this standby, from 1 on
  Part part = Part::kJob;
  bool last = true;  // false: the text goes on in the next message, of the same part
  std::string text;
  bool operator==(const Followed&) const = default;
};

using ToWorker =
    std::variant<Welcome, Refuse, Form, MemberLeft, Start, Commit, Revoke, Assign, FenceRound,
                 NewOwners, FenceAttempt, Hedge, TakeSums, CatchUp, Evaluate, StateChunk, Finish,
                 SetSlowdown, AskToLeave, Ping, Decide, GiveParameters, Standbys, Followed>;

// --- worker -> coordinator
// -------------------------------------------------------------------------------------------

// In a Hello that is no worker's.
struct StandbyHello {
  std::string address;  // where it listens, "HOST:PORT"
  // It keeps its records in a folder of its own, so it is sent those so far.
  bool own_folder = false;
  // Set once it has taken over: its term, and its job. A coordinator of that job whose term is
  // lower ends.
  Term leads = {};
  std::string run_id = {};
  bool operator==(const StandbyHello&) const = default;
};

struct Hello {
  std::uint32_t protocol = kProtocolVersion;
  std::string version;  // of the software, for people
  std::string host;
  std::uint64_t pid = 0;
  std::string device;              // "cpu", "cuda:0"
  std::optional<WorkerId> wanted;  // a slot it had before
  std::string host_id;             // boot id
  // The settings of the job from the training program, as INI text; empty: none, as from the
  // built-in trainer.
  std::string settings = {};
  std::optional<StandbyHello> standby = std::nullopt;
  bool operator==(const Hello&) const = default;
};

// The most samples of a training or test set: they are numbered by 32 bits.
inline constexpr std::uint64_t kMaxSamples = 0xFFFFFFFF;

struct Ready {
  std::vector<TransportOffer> transports;
  std::string mapping_address;
  std::string dataset_digest;       // hex
  std::uint64_t train_samples = 0;  // at most kMaxSamples
  std::uint64_t test_samples = 0;   // likewise
  std::uint64_t parameter_count = 0;
  std::uint32_t state_tensors = 0;       // of the optimizer
  std::vector<TensorInfo> tensors;       // empty, or together parameter_count values
  std::vector<std::string> state_names;  // of the optimizer's tensors
  std::string slowdowns;                 // its --slowdown, one SPEC in each line
  // The digest of its initial parameters, hex; empty: they come from the seed.
  std::string initial_digest = {};
  RunBound run_bound = {};
  // This worker alone has drawn its parameters: the job begins with those of one worker. The digest
  // is empty then.
  bool own_parameters = false;
  // The state of a worker that has lost its coordinator and has found this one, with the same
  // run_id.
  std::optional<HeldParameters> held = std::nullopt;
  // With optimizer.replicas: the shards that `held` is of, ascending. It has no others.
  std::vector<std::uint64_t> held_shards = {};
  bool operator==(const Ready&) const = default;
};

struct Reached {
  std::uint32_t formation = 0;
  std::vector<PeerPath> peers;
  bool operator==(const Reached&) const = default;
};

// Sent when a run is done, and at an interval during a long run.
struct Progress {
  RoundId round;
  std::uint32_t units_done = 0;  // of this round
  std::uint32_t units_taken = 0;
  Attempt plan = Attempt(0);  // Plan::attempt of the plan that it follows
  bool operator==(const Progress&) const = default;
};

// The bytes of a contribution that go to other workers, without those that they read from its
// mapping.
struct SentBytes {
  std::uint64_t all = 0;
  // The bytes that the transport had taken before the part was sealed, while its last run was
  // computed.
  std::uint64_t early = 0;
  std::int64_t since_ns = 0;  // when the first of these was requested, or went along with a message
  bool operator==(const SentBytes&) const = default;
};

// How well a program reads samples ahead of its training, by its own report.
struct Reading {
  // How long the runs waited for their samples, as a part of their time.
  std::optional<std::uint64_t> waited_ns;
  // The samples that were ready after the last run; at most kMaxSamplesAhead.
  std::optional<std::uint64_t> ahead;
  void Add(const Reading& later) {
    if (later.waited_ns) waited_ns = waited_ns.value_or(0) + *later.waited_ns;
    if (later.ahead) ahead = later.ahead;
  }
  bool operator==(const Reading&) const = default;
};
inline constexpr std::uint64_t kMaxSamplesAhead = std::uint64_t{1} << 40;

// The totals of all runs of a worker's process so far, counted in a round or not.
struct RunTotals {
  std::uint64_t samples = 0;
  std::int64_t took_ns = 0;
  Reading reading;
  bool operator==(const RunTotals&) const = default;
};

struct Sealed {
  RoundId round;
  PartIndex part;
  std::uint64_t samples = 0;
  double loss_sum = 0;  // not finite: the part is not finite either, and can be in no commit
  std::vector<UnitTiming> units;
  std::int64_t sealed_ns = 0;
  Attempt plan = Attempt(0);  // Plan::attempt of the plan that it follows
  // The number of units in each run, in the order of `units`; empty: not given.
  std::vector<std::uint64_t> runs = {};
  // The program's metrics of its runs, each name once for a reduction.
  std::vector<Metric> metrics = {};
  SentBytes sent = {};
  // The part's weight in the mean of its round, where that is not its samples: for instance tokens.
  std::optional<std::uint64_t> divisor = {};
  Reading reading = {};
  // The sum of the squares of some values of the gradient sum, at places that all workers use in
  // this round (worker/runtime/gradient_sample.h); nullopt: not given.
  std::optional<double> sampled_squares = {};
  bool operator==(const Sealed&) const = default;
};

// An owner reports these parts, of which it has all pieces that its shard needs under this map
// version. A mapped part counts as received when it is ready.
struct Receipts {
  RoundId round;
  std::uint32_t map_version = 0;
  std::vector<ReceivedPart> parts;
  bool operator==(const Receipts&) const = default;
};

// This answers Revoke: everything from position `from` on was not begun and is given back. It also
// answers an Assign that came too late: all of its units are refused, and `from` is where they
// would have begun. It also answers FenceRound (`fenced`): the worker holds nothing of the round
// any more, and nothing about it follows.
struct Revoked {
  RoundId round;
  std::uint32_t from = 0;
  std::uint32_t order = 0;  // of that Revoke, Assign or FenceRound
  bool fenced = false;
  bool operator==(const Revoked&) const = default;
};

// The owner's shard of this attempt can now be fetched.
struct Published {
  RoundId round;
  Attempt attempt;
  std::optional<WorkerId> stands_in_for = std::nullopt;  // the shard is this owner's (Hedge)
  bool operator==(const Published&) const = default;
};

struct Applied {
  RoundId round;
  Attempt attempt;
  std::uint32_t digest_slice = 0;
  std::uint64_t digest = 0;  // of that slice of the parameters after the round
  std::int64_t applied_ns = 0;
  RunTotals runs = {};
  bool operator==(const Applied&) const = default;
};

struct HoldAnswer {
  Term term;
  RoundId round;
  Attempt attempt;
  bool holds_all = false;
  std::uint32_t order = 0;  // of the FenceAttempt
  bool operator==(const HoldAnswer&) const = default;
};

// My parameters cannot follow (the sums of a round are gone, or were torn): I need CatchUp.
struct Behind {
  RoundId applied;  // last round whose result I certainly have; meaningless when has_any is false
  bool has_any = false;
  std::string reason;
  std::uint32_t order = 0;  // of the last CatchUp that I know; 0: none
  bool operator==(const Behind&) const = default;
};

// The number of bytes of the state that have arrived. It is sent with each slice during the copy,
// so that a long copy shows progress.
struct Copied {
  std::uint32_t order = 0;  // of the CatchUp; 0: for state that a holder or checkpoint writer lacks
  std::uint64_t values = 0;
  bool operator==(const Copied&) const = default;
};

// I have caught up: all of my slices are at `round`.
struct Level {
  RoundId round;
  std::uint32_t order = 0;  // of the CatchUp
  bool operator==(const Level&) const = default;
};

struct Unreachable {
  MemberId peer;
  std::string reason;
  bool operator==(const Unreachable&) const = default;
};

struct EvaluationResult {
  std::uint32_t evaluation = 0;
  SampleRange range;
  double loss_sum = 0;
  std::uint64_t correct = 0;
  bool operator==(const EvaluationResult&) const = default;
};

struct Final {
  RoundId round;
  std::string params_digest;  // SHA-256, hex
  bool operator==(const Final&) const = default;
};

struct Leave {
  std::string reason;
  bool operator==(const Leave&) const = default;
};

// The run of units that a worker's compute thread is in. No units: it is in none.
struct RunInHand {
  std::int64_t lasts_ns = 0;  // so far; without the time that the program has said that it is away
  std::uint32_t units = 0;
  bool operator==(const RunInHand&) const = default;
};

struct Pong {
  std::uint64_t sequence = 0;
  std::int64_t ping_sent_ns = 0;  // of the Ping
  std::int64_t answered_ns = 0;   // the answerer's monotonic clock
  // Memory of the answerer's process; 0: not given, as by versions before this field.
  std::uint64_t resident_bytes = 0;
  RunInHand run = {};
  bool operator==(const Pong&) const = default;
};

// I have stored so many bytes of the checkpoint that I am being sent, counted from its first byte.
struct CheckpointTaken {
  std::uint64_t bytes = 0;
  bool operator==(const CheckpointTaken&) const = default;
};

// My parameters, in answer to GiveParameters: in order, without gaps.
struct Given {
  std::uint32_t giving = 0;
  std::uint64_t offset = 0;  // bytes
  std::vector<std::byte> bytes;
  bool operator==(const Given&) const = default;
};

// The digest of my parameters and optimizer state, in the order of StateChunk, after a round whose
// commit names a checkpoint writer. The checkpoint is valid when most members report the digest of
// its contents.
struct ReplicaDigest {
  RoundId round;
  Attempt attempt;
  Digest128 digest;
  bool operator==(const ReplicaDigest&) const = default;
};

// A holder reports that it has the sums of all its shards in this attempt, and their state as it
// was before the round. It does not change that state before Decide.
struct Held {
  RoundId round;
  Attempt attempt;
  bool operator==(const Held&) const = default;
};

// A worker that makes a shard's sums names these parts, by their place in the commit: they have
// values that are infinite or not numbers. The shard is not published.
struct NotFinite {
  RoundId round;
  Attempt attempt;
  std::vector<std::uint64_t> parts;
  bool operator==(const NotFinite&) const = default;
};

// The program needs no more rounds: the job is to end with the last committed round.
struct StopAsked {
  std::string reason;
  bool operator==(const StopAsked&) const = default;
};

// The program does something else (it validates, saves, compiles) for at most so long. Meanwhile
// the worker is asked for nothing and does not count as lost.
struct Away {
  std::int64_t at_most_ns = 0;
  std::string reason;
  bool operator==(const Away&) const = default;
};

// The program is back.
struct Back {
  bool operator==(const Back&) const = default;
};

// Of a standby: it has all that it was sent up to this message.
struct Noted {
  std::uint64_t sequence = 0;
  // Set when it takes over: the term in which it leads from now on.
  Term leads = {};
  bool operator==(const Noted&) const = default;
};

// A sketch has so many sums of a gradient's values, with signs drawn at random. Value i is in sum i
// modulo their number. The distance of two sketches estimates that of the gradients. See Alon,
// Matias and Szegedy, "The space complexity of approximating the frequency moments", STOC 1996.
// One sum for each value is from Charikar, Chen and Farach-Colton, "Finding frequent items in data
// streams", ICALP 2002.
inline constexpr std::size_t kAuditCounters = 64;

// The gradient of a unit that is audited, of this unit alone.
struct Audited {
  RoundId round;
  Attempt plan;  // Plan::attempt
  Unit unit;
  Digest128 bits;      // of the gradient
  double squares = 0;  // their sum; not finite where a value is not
  std::vector<double> sketch;
  // Gradients of workers that compute alike are the same bits: of what device, by how many threads.
  std::string arithmetic;
  bool operator==(const Audited&) const = default;
};

// Costs of an epoch's samples beside each other: positions from `from` on, in order. One of the
// workers tells them for all, in pieces one behind the other. They decide only who computes what.
struct Costs {
  static constexpr std::size_t kMost = 65536;  // samples in a message
  Epoch epoch;
  std::uint64_t from = 0;
  double scale = 1;              // of one of the numbers; > 0
  std::vector<std::byte> costs;  // 16-bit numbers, the lower byte first
  bool operator==(const Costs&) const = default;
};

using FromWorker =
    std::variant<Hello, Ready, Reached, Progress, Sealed, Receipts, Revoked, Published, Applied,
                 HoldAnswer, Behind, Level, Unreachable, EvaluationResult, StateChunk, Final, Leave,
                 Pong, Copied, CheckpointTaken, ReplicaDigest, Held, StopAsked, NotFinite, Away,
                 Back, Given, Noted, Audited, Costs>;

}  // namespace msg

}  // namespace lockstep
