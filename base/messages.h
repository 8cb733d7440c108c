// The control plane's messages as plain values: what coordinator and workers say to each other. The
// pure cores speak these; transport/control/ turns them into Protocol Buffers and back.
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

// Of the control and data protocols together; a worker of another version is refused at join.
inline constexpr std::uint32_t kProtocolVersion = 1;
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

// Samples of all of them.
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

// Of one shard: its owner first, each member once.
struct ShardHolders {
  std::vector<MemberId> members;  // at least one
  bool operator==(const ShardHolders&) const = default;
};

// How the sums of a round come about (base/routes.h).
enum class ExchangeAlgorithm : std::uint8_t {
  kDirect,  // owners fetch their shard of every part, before the commit, and members the sums
  // After the commit partial sums go from contributor to contributor, and the sums back.
  kRing,  // along all of them
  kTree,  // up two trees, each for half of the parameters
};

// Who owns which slices: the same pure function of (map, layout) cuts the buckets everywhere
// (worker/layout/layout.h).
struct OwnerMap {
  std::uint32_t version = 0;       // grows within a round with each new map
  std::vector<OwnerShare> owners;  // by ascending worker id, at least one
  // Where not everybody holds all of the optimizer's state (optimizer.replicas): who holds each
  // shard. The shards are of equal size, and `owners` are those who own one, each with as many as
  // it owns. Empty: everybody holds everything, and shards are cut by weight.
  std::vector<ShardHolders> holders = {};
  // Another one than direct is for the plan of a round and its first commit. The commit's owners
  // are the contributors then at which the routes of the partial sums end.
  ExchangeAlgorithm algorithm = ExchangeAlgorithm::kDirect;
  bool direct() const { return algorithm == ExchangeAlgorithm::kDirect; }
  bool operator==(const OwnerMap&) const = default;
};

// Consecutive units of a member's queue that it computes together, as one batch, are a run: it
// takes them at once, so none of them can be given back until it is done.
struct RunLimit {
  std::uint32_t units = 0;  // of a run at most; 0: all that there are
  bool guided = false;      // and no more than half of what is left (guided self-scheduling)
  bool operator==(const RunLimit&) const = default;
};

// How many of the `left` units of its queue a member takes next.
inline std::uint32_t NextRun(std::uint32_t left, const RunLimit& limit) {
  const std::uint32_t units = limit.guided ? left - left / 2 : left;
  return limit.units > 0 && limit.units < units ? limit.units : units;
}

// What a member can compute at once, of its memory or because its batches are to be of one size:
// holds for its runs whatever their limit is. A run has one unit at least. 0: no bound.
struct RunBound {
  std::uint64_t samples = 0;
  std::uint32_t units = 0;
  bool operator==(const RunBound&) const = default;
};

// Units of a run at most, where so many units have so many samples; 0: no bound.
inline std::uint32_t MostInRun(const RunBound& bound, std::uint32_t units, std::uint64_t samples) {
  if (bound.samples == 0 || bound.samples >= samples) return bound.units;
  const auto fit = static_cast<std::uint32_t>(bound.samples * units / samples);
  const std::uint32_t most = fit > 0 ? fit : 1;
  return bound.units > 0 && bound.units < most ? bound.units : most;
}

// The limit, and no run above `most` units; 0: the limit as it is.
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

struct Plan {
  RoundId round;
  Epoch epoch;
  std::vector<Assignment> assignments;  // by ascending worker id; a member without units is absent
  OwnerMap owners;
  // All who take part in this round's exchange (apply its sums): ascending; includes members
  // without units and those catching up.
  std::vector<MemberId> members;
  // Units of this round are computed with a copy of the parameters as they are when the work
  // begins, so that later rounds are applied meanwhile (policy `async`).
  bool relaxed = false;
  // Of a relaxed round after another one: what was begun there and is in no part of its commit
  // goes on, as work of this round. Who has some is given nothing new.
  bool carries = false;
  // Of the local steps (policy `local`); 0 in all other rounds.
  float local_rate = 0;
  // Of the commit that it came with. A later attempt at that makes another plan of this round, and
  // nothing that was computed for the one before counts.
  Attempt attempt;
  // Where the schedule of the learning rate is before this round: updates of whole rounds, of which
  // those that were made may be fractions.
  double position = 0;
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

// Where the parameters and optimizer state of this worker come from.
enum class StateSource : std::uint8_t {
  kSeed,        // initial parameters out of the job's seed
  kCheckpoint,  // StateChunks follow before Start; `Start.plan.round` continues after them
  kPeers,       // CatchUp follows
  kGiven,       // parameters of one worker's own (GiveParameters); all others got them as
                // StateChunks before Start. Empty optimizer state
  kHeld,        // what this worker said that it holds (Ready::held)
};

// The parameters and optimizer state that a worker has kept from the coordinator before: those
// before round `next`. They are the same bits wherever term, round and attempt are the same.
struct HeldParameters {
  Term term;
  RoundId next;
  // Of the commit of round next - 1, which is the newest one in them; none: nothing was committed
  // since that term's Start.
  std::optional<Attempt> attempt;
  bool operator==(const HeldParameters&) const = default;
};

struct TransportOffer {
  std::string name;     // "ucx", "tcp"
  std::string address;  // empty: not available
  std::string error;    // why not
  bool operator==(const TransportOffer&) const = default;
};

// A named run of parameters, in model order; for checkpoints that other programs read.
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

// What of a run or a part counts may be something else than samples (Sealed::divisor). In a part
// there are at most 2^16 runs, in a commit at most 2^13 parts: sums stay within 64 bits.
inline constexpr std::uint64_t kMaxRunDivisor = std::uint64_t{1} << 31;
inline constexpr std::uint64_t kMaxPartDivisor = std::uint64_t{1} << 47;

namespace msg {

// --- coordinator -> worker
// -------------------------------------------------------------------------------------------

// Answer to Hello. The worker opens its data, builds its model and its transports, then sends
// Ready.
struct Welcome {
  MemberId self;
  Term term;
  std::string job_id;
  std::vector<std::byte> job_key;  // 32 bytes, see transport::Options
  std::string config_text;         // the job's effective config, INI
  std::uint32_t workers = 0;       // of the job (--workers)
  std::int64_t age_ns = 0;         // of the job when this was sent; what slow-downs count from
  // Of the run directory: the same for each coordinator that goes on with the job.
  std::string run_id = {};
  bool operator==(const Welcome&) const = default;
};

// The coordinator will not have this worker; the connection is closed afterwards. One line.
struct Refuse {
  std::string reason;
  // It may be otherwise in a while (a slot is not free yet) or when the job runs again.
  bool try_again = false;
  bool operator==(const Refuse&) const = default;
};

// Take `transport` and connect to each of `connect_to`; `expect` will connect to you. Answered by
// Reached. Sent again with another transport when the first was not possible (everything built up
// before is dropped), and to a later joiner.
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
  // First round to compute. For kPeers: the plan of the round that is open now, in which the worker
  // has no units. Also when that round begins once more, with a plan of a higher attempt.
  Plan plan;
  std::uint64_t total_samples_before = 0;
  bool operator==(const Start&) const = default;
};

// The coordinator's decision on a round. Closes the round before it. Carries all scalars of the
// update, computed once.
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
  std::optional<MemberId>
      checkpoint_writer;  // who streams its state after applying this round (StateUpload)
  std::uint32_t evaluation =
      0;  // non-zero: the state after this round is evaluated, under this id (see Evaluate)
  double loss = 0;                   // mean over the included samples
  std::vector<Metric> metrics = {};  // of all parts together
  // For the program, of when the round was closed: the policy in force, and the workers whose units
  // take much longer than is usual, ascending.
  std::string policy = {};
  std::vector<std::uint64_t> slow = {};
  double position = 0;  // of the schedule before this round (Plan)
  bool operator==(const Commit&) const = default;
};

// Revoke, Assign, FenceRound, FenceAttempt and CatchUp are orders, numbered by the coordinator,
// never twice the same number. Answers name the order, so that an old answer is not taken for one
// to a later order, and both ends count the same units: when the worker answers an order it knows
// all that came before, and nothing of what comes after.

// Give back what is not yet begun, from queue position `from` on (positions count the units given
// to this worker in this round, less those that were given back or refused).
struct Revoke {
  RoundId round;
  std::uint32_t from = 0;
  std::uint32_t order = 0;
  bool operator==(const Revoke&) const = default;
};

// More units in this round, behind those that the worker has. Refused by Revoked when both parts
// are sealed, or begun to be.
struct Assign {
  RoundId round;
  std::vector<Unit> units;
  std::uint32_t order = 0;
  bool operator==(const Assign&) const = default;
};

// Nothing that you computed for this round counts; its units have been given away.
struct FenceRound {
  RoundId round;
  std::uint32_t order = 0;
  bool operator==(const FenceRound&) const = default;
};

// A new owner map for a round that is not yet committed. A round that begins once more, because no
// contribution to it is left or nobody has a part left for it, is announced by Start instead, with
// another plan of that round. Nothing that was computed for it before counts, and its units follow
// by Assign.
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

// `owner` has not published its shard of this attempt, and others have: `by` makes the same sums,
// of the same parts, and publishes them too; all take them from whichever is first. Sent to all
// members; nothing that was said is taken back. With optimizer.replicas: `owner` does not answer,
// so what it holds is taken from who else has it; `by` is another member.
struct Hedge {
  Term term;
  RoundId round;
  Attempt attempt;
  MemberId owner;
  MemberId by;
  bool operator==(const Hedge&) const = default;
};

// The truth of commit.round is commit.attempt: fetch all shards from `holder` (or use your own). It
// ends what was promised of this attempt before.
struct TakeSums {
  Commit commit;
  MemberId holder;
  bool operator==(const TakeSums&) const = default;
};

// All holders of this attempt's shards have said Held: it stands, whatever happens. Holders update
// what they hold.
struct Decide {
  RoundId round;
  Attempt attempt;
  bool operator==(const Decide&) const = default;
};

// Your parameters are not those of the last closed round: copy state from `donor`, slice by slice,
// then follow.
struct CatchUp {
  MemberId donor;
  RoundId open_round;  // commits of this and later rounds will reach you
  std::uint32_t order = 0;
  bool operator==(const CatchUp&) const = default;
};

// Evaluate these test samples with the parameters after round `round`. Computed when there is
// nothing else to do.
struct Evaluate {
  std::uint32_t evaluation = 0;
  RoundId round;
  SampleRange range;
  bool operator==(const Evaluate&) const = default;
};

// State of a checkpoint, in order, both ways: coordinator -> worker at resume, worker ->
// coordinator when it was asked to write.
struct StateChunk {
  RoundId round;             // state after this closed round
  std::uint32_t tensor = 0;  // 0: parameters; 1..: optimizer state, in the optimizer's order
  std::uint64_t offset = 0;  // bytes, into the flat tensor
  bool last = false;         // of the whole state
  std::vector<std::byte> bytes;
  bool operator==(const StateChunk&) const = default;
};

// End: report Final and leave. `error` empty: the job ended as it should.
struct Finish {
  std::string reason;
  bool failed = false;
  bool early = false;  // there were rounds to come
  bool operator==(const Finish&) const = default;
};

// What slows this worker down from now on, instead of all that did.
struct SetSlowdown {
  std::string specs;  // one SPEC of the command line in each line; empty: none
  bool operator==(const SetSlowdown&) const = default;
};

// Somebody wants this worker to leave the job, as with SIGTERM: Leave follows. Sent when no round
// needs it.
struct AskToLeave {
  std::string reason;
  bool operator==(const AskToLeave&) const = default;
};

struct Ping {
  std::uint64_t sequence = 0;
  std::int64_t sent_ns = 0;  // the sender's monotonic clock
  bool operator==(const Ping&) const = default;
};

// Before Start, where parameters are each worker's own (Ready::own_parameters): those of this one
// are to be everybody's. It sends Given in order, from the first byte on, until it has sent `upto`
// bytes; when that grows it goes on. The others get them as StateChunks of tensor 0, which begin
// anew when another worker gives, and tell what they have stored, as of a checkpoint. While the
// first round is open it is asked again for newcomers: its parameters are those still.
struct GiveParameters {
  std::uint32_t giving = 0;  // its number; a higher one begins at the first byte
  std::uint64_t upto = 0;
  bool operator==(const GiveParameters&) const = default;
};

using ToWorker =
    std::variant<Welcome, Refuse, Form, MemberLeft, Start, Commit, Revoke, Assign, FenceRound,
                 NewOwners, FenceAttempt, Hedge, TakeSums, CatchUp, Evaluate, StateChunk, Finish,
                 SetSlowdown, AskToLeave, Ping, Decide, GiveParameters>;

// --- worker -> coordinator
// -------------------------------------------------------------------------------------------

struct Hello {
  std::uint32_t protocol = kProtocolVersion;
  std::string version;  // of the software, for people
  std::string host;
  std::uint64_t pid = 0;
  std::string device;              // "cpu", "cuda:0"
  std::optional<WorkerId> wanted;  // a slot it had before
  std::string host_id;             // boot id
  // What the training program says of the job, INI text; empty: nothing, as the built-in trainer.
  std::string settings = {};
  bool operator==(const Hello&) const = default;
};

// Of a data set, to train with or to test with: they are numbered by 32 bits.
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
  // Of the parameters that it would begin with, hex; empty: they come from the seed.
  std::string initial_digest = {};
  RunBound run_bound = {};
  // They are whatever they are, drawn by this worker alone: the job begins with those of one. The
  // digest is empty then.
  bool own_parameters = false;
  // Of a worker that has lost its coordinator and has found this one, with the same run_id.
  std::optional<HeldParameters> held = std::nullopt;
  bool operator==(const Ready&) const = default;
};

struct Reached {
  std::uint32_t formation = 0;
  std::vector<PeerPath> peers;
  bool operator==(const Reached&) const = default;
};

// Sent when a run is done, and by itself at an interval while a run is long.
struct Progress {
  RoundId round;
  std::uint32_t units_done = 0;  // of this round
  std::uint32_t units_taken = 0;
  Attempt plan = Attempt(0);  // Plan::attempt of the plan that it follows
  bool operator==(const Progress&) const = default;
};

// What of a contribution goes to other workers; not what they read where it lies.
struct SentBytes {
  std::uint64_t all = 0;
  // That the transport had taken before the part was sealed, while its last run was computed.
  std::uint64_t early = 0;
  std::int64_t since_ns = 0;  // when the first of these was asked for, or rode on a message
  bool operator==(const SentBytes&) const = default;
};

// How a program's reading of samples keeps up with its training, as it says itself.
struct Reading {
  // Of the time that runs took, how long they waited for their samples.
  std::optional<std::uint64_t> waited_ns;
  // Samples that lay ready behind the last of them; at most kMaxSamplesAhead.
  std::optional<std::uint64_t> ahead;
  void Add(const Reading& later) {
    if (later.waited_ns) waited_ns = waited_ns.value_or(0) + *later.waited_ns;
    if (later.ahead) ahead = later.ahead;
  }
  bool operator==(const Reading&) const = default;
};
inline constexpr std::uint64_t kMaxSamplesAhead = std::uint64_t{1} << 40;

// What all runs of a worker's process have taken so far, counted in a round or not.
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
  double loss_sum = 0;  // not finite: nor is the part, which can be in no commit
  std::vector<UnitTiming> units;
  std::int64_t sealed_ns = 0;
  Attempt plan = Attempt(0);  // Plan::attempt of the plan that it follows
  // How many of `units`, in their order, each run had; empty: it is not said.
  std::vector<std::uint64_t> runs = {};
  // What the program has logged of its runs, each name once for a reduction.
  std::vector<Metric> metrics = {};
  SentBytes sent = {};
  // What the part counts for in the mean of its round, where that is not its samples: tokens, say.
  std::optional<std::uint64_t> divisor = {};
  Reading reading = {};
  // Of the gradient sum, the squares of some values at places that all workers look at in this
  // round (worker/runtime/gradient_sample.h), added up; nullopt: it is not said.
  std::optional<double> sampled_squares = {};
  bool operator==(const Sealed&) const = default;
};

// From an owner: it has all pieces of these parts that its shard under this map version needs. A
// mapped part is received when it is ready.
struct Receipts {
  RoundId round;
  std::uint32_t map_version = 0;
  std::vector<ReceivedPart> parts;
  bool operator==(const Receipts&) const = default;
};

// Answer to Revoke: everything from position `from` on was not begun and is given back. Or an
// Assign that came too late: all of its units are refused, `from` is where they would have begun.
// Or answer to FenceRound (`fenced`): nothing is held any more, and nothing about it follows.
struct Revoked {
  RoundId round;
  std::uint32_t from = 0;
  std::uint32_t order = 0;  // of that Revoke, Assign or FenceRound
  bool fenced = false;
  bool operator==(const Revoked&) const = default;
};

// The owner's shard of this attempt can be fetched.
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
  RoundId applied;  // last round whose result I have for sure; meaningless when has_any is false
  bool has_any = false;
  std::string reason;
  std::uint32_t order = 0;  // of the last CatchUp that I know; 0: none
  bool operator==(const Behind&) const = default;
};

// So much of the state is there. Sent with each slice while it is copied: who copies for long gets
// on.
struct Copied {
  std::uint32_t order = 0;  // of the CatchUp; 0: of what a holder, or a checkpoint's writer, lacks
  std::uint64_t values = 0;
  bool operator==(const Copied&) const = default;
};

// Caught up: all of my slices are at `round`.
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
  std::int64_t lasts_ns = 0;  // so far; without what the program has said that it is away
  std::uint32_t units = 0;
  bool operator==(const RunInHand&) const = default;
};

struct Pong {
  std::uint64_t sequence = 0;
  std::int64_t ping_sent_ns = 0;  // of the Ping
  std::int64_t answered_ns = 0;   // the answerer's monotonic clock
  // Memory of the answerer's process; 0: it does not say, as versions before this field do not.
  std::uint64_t resident_bytes = 0;
  RunInHand run = {};
  bool operator==(const Pong&) const = default;
};

// So many bytes of the checkpoint that is being sent to me lie where they belong; counted from its
// first one.
struct CheckpointTaken {
  std::uint64_t bytes = 0;
  bool operator==(const CheckpointTaken&) const = default;
};

// Of my parameters, as GiveParameters asks for them: in order, without gaps.
struct Given {
  std::uint32_t giving = 0;
  std::uint64_t offset = 0;  // bytes
  std::vector<std::byte> bytes;
  bool operator==(const Given&) const = default;
};

// Of my parameters and optimizer state after a round whose commit names a checkpoint writer, in the
// order of StateChunk. The checkpoint counts when most have what it holds.
struct ReplicaDigest {
  RoundId round;
  Attempt attempt;
  Digest128 digest;
  bool operator==(const ReplicaDigest&) const = default;
};

// From a holder: it has the sums of all shards that it holds in this attempt, and their state as it
// is before the round. It does not change that before Decide.
struct Held {
  RoundId round;
  Attempt attempt;
  bool operator==(const Held&) const = default;
};

// From who makes a shard's sums: these parts, by their place in the commit, have values that are
// infinite or not numbers. The shard is not published.
struct NotFinite {
  RoundId round;
  Attempt attempt;
  std::vector<std::uint64_t> parts;
  bool operator==(const NotFinite&) const = default;
};

// The program has what it wanted of the job: it is to end with the round that was committed last.
struct StopAsked {
  std::string reason;
  bool operator==(const StopAsked&) const = default;
};

// The program does something else (it validates, saves, compiles) for at most so long: nothing is
// asked of it meanwhile, and it is not lost for it.
struct Away {
  std::int64_t at_most_ns = 0;
  std::string reason;
  bool operator==(const Away&) const = default;
};

// It is there again.
struct Back {
  bool operator==(const Back&) const = default;
};

using FromWorker =
    std::variant<Hello, Ready, Reached, Progress, Sealed, Receipts, Revoked, Published, Applied,
                 HoldAnswer, Behind, Level, Unreachable, EvaluationResult, StateChunk, Final, Leave,
                 Pong, Copied, CheckpointTaken, ReplicaDigest, Held, StopAsked, NotFinite, Away,
                 Back, Given>;

}  // namespace msg

}  // namespace lockstep
