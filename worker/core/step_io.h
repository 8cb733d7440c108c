// The events that go into the worker's core (event::), the actions that come out (action::), and
// the memory it speaks about. The core is pure: the shell turns socket events, completions and the
// compute thread's reports into events, and carries out the actions in the order given.
//
// Threads of the shell. The data thread runs the core and carries out every action that is not
// marked otherwise, at once. The reduction thread carries out the operations (actions with an `op`)
// in the order given and answers each with exactly one OpDone. The compute thread works on
// StepMachine::queue().
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/exchange_words.h"
#include "base/messages.h"
#include "base/time.h"
#include "worker/layout/layout.h"

namespace lockstep::worker {

// Of one that has been let in: it may come again, or it is not fit for the job.
inline std::string WordsOf(const msg::Refuse& refuse) {
  return (refuse.try_again ? "the coordinator has taken this worker out: "
                           : "the coordinator refuses this worker: ") +
         refuse.reason;
}

// --- memory
// -----------------------------------------------------------------------------------------------

// Contributions: two parts of the open round and of the one before it (which go when that is
// applied). A spare one serves while a served send pins one of them. Sums: the open round, the
// provisional one, two closed ones. (Sums are kept for two rounds after theirs is closed, and a
// late worker takes them in order.) Always the first that is free is taken, so that the others are
// never touched unless they are needed.
inline constexpr std::uint32_t kContributionBuffers = 5;
inline constexpr std::uint32_t kSumBuffers = 4;
inline constexpr std::uint32_t kStateOutBuffers = 2;
inline constexpr std::uint32_t kPartialStaging = 4;  // the index of that staging buffer

enum class BufferKind : std::uint8_t {
  kContribution,  // index < kContributionBuffers; Layout::contribution_numbers(); peers may map it
  kSum,           // index < kSumBuffers; Layout::sum_floats() floats; peers may map it
  kTaken,         // index < kSumBuffers; as kSum, of which what others have summed is taken here
  kStaging,       // pieces of one contributor: index < 4, usually the part;
                  // as a contribution, of which only the slices that this worker owns are ever
                  // touched. kPartialStaging: of its partial sums
  kState,  // index 0: parameters, 1..: the optimizer's state tensors; parameter_count floats each,
           // those from 1 on one behind the other where the program makes the update itself
  kStateOut,  // index < kStateOutBuffers; Layout::copy of each state tensor, one behind the other:
              // (1 + state_tensors) * Layout::largest_copy() floats
};

struct BufferId {
  BufferKind kind = BufferKind::kContribution;
  std::uint32_t index = 0;
  WorkerId contributor;  // of kStaging
  auto operator<=>(const BufferId&) const = default;
};

// Of a number in a buffer of this kind: state is FP32 whatever contributions and sums are, whose
// numbers take `exchanged` (Layout::number_bytes).
constexpr std::uint64_t NumberBytes(BufferKind kind, std::uint64_t exchanged) {
  const bool state = kind == BufferKind::kState || kind == BufferKind::kStateOut;
  return state ? sizeof(float) : exchanged;
}

// Offsets are in floats; in all buffers but kStateOut the offset is the parameter's, or, in
// contributions and sums, where Layout::InContribution and InSum have it.
struct BufferRange {
  BufferId buffer;
  FloatRange range;
  bool operator==(const BufferRange&) const = default;
};

// Memory to read: a buffer of this worker, or one of a peer's through the mapping. A mapped block
// must have `generation` after the pass (and had it before), else what was read is torn.
struct Source {
  BufferId buffer;
  std::optional<MemberId> peer;
  std::uint32_t generation = 0;
  bool operator==(const Source&) const = default;
};

// Answer to "may this piece be served?". The piece that was answered stays untouched until
// event::Served.
struct Serve {
  bool have = false;
  BufferRange from;
  std::uint64_t cookie = 0;
};

// The ends of epochs that the program knows of (epoch_ends.h). They outlive a core.
struct EpochsSeen {
  Epoch next;                        // those before it have ended, and the program was told so
  std::optional<Epoch> newest = {};  // of the newest round in the parameters, if it is known
};

// --- events
// -----------------------------------------------------------------------------------------------

namespace event {

// Any message of the coordinator but Welcome.
struct FromCoordinator {
  msg::ToWorker message;
};
// At most one connection for each member is up; the shell closes a second one.
struct PeerUp {
  MemberId peer;
  std::string path;
};
struct PeerDown {
  MemberId peer;
  std::string reason;
};
struct ConnectFailed {
  MemberId peer;
  std::string reason;
};
// Answer to action::MapPeer.
struct PeerMapped {
  MemberId peer;
  bool ok = false;
  std::string error;
};
// A small message; `bytes` need to be valid until the actions of this step are carried out.
struct FromPeer {
  MemberId peer;
  std::span<const std::byte> bytes;
};
struct FetchDone {
  std::uint64_t fetch = 0;
  FetchStatus status = FetchStatus::kOk;
};
struct Served {
  std::uint64_t cookie = 0;
};

// The compute thread reports each run that it took with one RunDone, after its last use of the
// parameters. It does so also when it left the run off because the queue was void. It reports each
// part that it has begun to seal with one PartSealed, after its last write. `work` is that of
// action::StartWork.
struct RunDone {
  std::uint32_t work = 0;
  PartIndex part;
  std::uint64_t samples = 0;
  double loss_sum = 0;
  std::vector<UnitTiming> units;
  std::vector<Metric> metrics = {};           // that the program has logged in it
  std::optional<std::uint64_t> divisor = {};  // nullopt: the samples
  msg::Reading reading = {};
};
struct AuditedGradient {
  Digest128 bits;
  double squares = 0;
  std::vector<double> sketch;  // see msg::Audited
  std::string arithmetic;
};
// The gradient of an audited unit. It comes before the RunDone of its run where it is one that
// counts (`counts`). Each one that was taken and does not count is reported; void: it was left off.
struct UnitAudited {
  std::uint32_t work = 0;
  Unit unit;
  bool counts = false;
  std::optional<AuditedGradient> gradient;
};
// While the last unit of a part is computed: the first `buckets` buckets will not change any more.
struct BucketsFinal {
  std::uint32_t work = 0;
  PartIndex part;
  std::uint32_t buckets = 0;
};
struct PartSealed {
  std::uint32_t work = 0;
  PartIndex part;
  std::int64_t sealed_ns = 0;
  bool finite = true;                          // all values of the contribution are numbers
  std::optional<double> sampled_squares = {};  // msg::Sealed
};
// Answer to action::EvaluateChunk.
struct ChunkEvaluated {
  std::uint32_t evaluation = 0;
  SampleRange range;
  double loss_sum = 0;
  std::uint64_t correct = 0;
};
// An operation of the reduction thread has ended. `torn`: a mapped block changed under the pass.
struct OpDone {
  std::uint64_t op = 0;
  bool torn = false;
  std::uint64_t digest = 0;  // of action::Apply
  std::string text;          // of action::DigestState
  Digest128 replica = {};    // of action::DigestReplica
  // Of action::Reduce: inputs that have values which are infinite or not numbers.
  std::vector<std::uint32_t> not_finite = {};
};
// A chunk of the checkpoint has left for the coordinator (answer to action::UploadChunk).
struct ChunkUploaded {};
struct ChunkGiven {};  // likewise
// The program has seen the parameters of action::EpochEnd: they may change.
struct EpochEndSeen {};
// The costs of an epoch's samples, as the program says them, by position: numbers times `scale`.
// `exact`: the same unrounded, where runs are bounded by them; else null.
struct CostsGiven {
  Epoch epoch;
  double scale = 1;  // > 0
  std::shared_ptr<const std::vector<std::uint16_t>> costs;
  std::shared_ptr<const std::vector<float>> exact = nullptr;
};
// The user wants this worker to leave the job.
struct LeaveAsked {
  std::string reason;
};
// The connection to the coordinator has ended.
struct CoordinatorGone {
  std::string reason;
};
// The next one is there, or none will come. Answered by action::Detached when no update is under
// way.
struct CoordinatorFound {
  std::optional<HeldParameters> decided = std::nullopt;  // msg::Welcome
};
struct TimerDue {
  // When the last byte of a peer came, where the transport can tell: a piece under way on a slow
  // link may take longer than a peer may be silent.
  std::vector<std::pair<MemberId, Time>> heard;
};

}  // namespace event

using Event =
    std::variant<event::FromCoordinator, event::PeerUp, event::PeerDown, event::ConnectFailed,
                 event::PeerMapped, event::FromPeer, event::FetchDone, event::Served,
                 event::RunDone, event::UnitAudited, event::BucketsFinal, event::PartSealed,
                 event::ChunkEvaluated, event::OpDone, event::ChunkUploaded, event::ChunkGiven,
                 event::EpochEndSeen, event::CostsGiven, event::LeaveAsked, event::CoordinatorGone,
                 event::CoordinatorFound, event::TimerDue>;

// --- actions
// -----------------------------------------------------------------------------------------------

namespace action {

struct ToCoordinator {
  msg::FromWorker message;
};
// A small message: `bytes`, then the floats of `payload` one behind the other. When it cannot be
// queued (Send says false) the shell closes the peer: what was not said cannot be said later.
struct ToPeer {
  MemberId peer;
  std::vector<std::byte> bytes;
  std::vector<BufferRange> payload;
};
// From here on the job's transport is this one. Connections over another are closed; no event of
// theirs is reported any more. Those that are up over this one and were not reported yet (the peer
// had its Form earlier) are reported as PeerUp now.
struct UseTransport {
  std::string name;
};
struct ConnectPeer {
  PeerInfo info;
};
// Map the peer's arena and prove that it is the peer's; event::PeerMapped follows.
struct MapPeer {
  PeerInfo info;
};
// No source names this peer's arena any more. (A peer's death alone does not end its mapping.)
struct UnmapPeer {
  MemberId peer;
};
struct ClosePeer {
  MemberId peer;
  std::string reason;
};
struct Fetch {
  std::uint64_t fetch = 0;
  MemberId peer;
  PieceName piece;
  BufferRange to;
};
struct GiveUpFetch {
  std::uint64_t fetch = 0;
};
// Bytes that came along with a peer's message. They lie in the event's bytes.
struct StoreInline {
  BufferRange to;
  std::span<const std::byte> bytes;
};
// A new use of a block begins: set its generation, visible to peers before anything is written to
// the block. Peers learn of what is in it by messages that name the generation.
struct OpenBlock {
  BufferId buffer;
  std::uint32_t generation = 0;
};

// For the compute thread: the queue was filled for this round; part p of the contribution goes to
// `parts[p]`, whose old content means nothing. UnitQueue::TakeNext hands out the units, perhaps a
// moment before this action is carried out: a run waits until the StartWork of its `work` was.
struct StartWork {
  std::uint32_t work = 0;
  RoundId round;
  Epoch epoch;
  std::array<BufferId, kMaxParts> parts;
  // Computed with the snapshot kCompute; the parameters change meanwhile.
  bool on_copy = false;
  float local_rate = 0;  // of the local steps that the work is done in; 0: gradients are summed
  double position = 0;   // of the schedule of the learning rate (Plan)
  // Says what became of the parts before, again until a part is sealed after it. These are in
  // rounds that the parameters have come through since; other ones never will be. `copied`: the
  // parameters were copied from a peer, so it is not known of any.
  std::vector<SealedPart> applied = {};
  bool copied = false;
  // Somebody fetches buckets of it that are final before the rest is; else all read it in place
  // when it is sealed.
  bool sends_early = true;
};
// Units were appended: look into the queue again.
struct WakeCompute {};
// The queue is void: a unit under way may be left off.
struct VoidWork {
  std::uint32_t work = 0;
};
// For the compute thread, with the parameters of the evaluation's snapshot. One at a time.
struct EvaluateChunk {
  std::uint32_t evaluation = 0;
  SampleRange range;
};

// For the compute thread: all rounds of this epoch, and of those before it, are in the parameters.
// The parameters do not change until event::EpochEndSeen. One at a time.
struct EpochEnd {
  Epoch epoch;
  RoundId next;       // the first round that is not in the parameters
  bool late = false;  // rounds of later epochs may be in them, too
};

struct ReduceInput {
  Source source;
  float weight = 1.0f;
};
// out[i] = sum over the inputs, in order, of weight * input[i], for i in the slices; with `norms`
// also each grain's sum of squares, at Layout::NormsOf(slice). The slices are of parameters; inputs
// and sums lie as Layout has them. This is an owner's part of the reduce-scatter.
struct Reduce {
  std::uint64_t op = 0;
  RoundId round;
  Attempt attempt;
  std::vector<Slice> slices;
  std::vector<ReduceInput> inputs;
  BufferId out;
  bool norms = false;
};
struct SourceRange {
  Source source;
  FloatRange range;
};
// With optimizer.replicas: updates the optimizer's state in `ranges`, by the sums in `sums`. The
// parameters before the round are in `from`; those after it take the place of the sums.
struct UpdateHeld {
  std::uint64_t op = 0;
  RoundId round;
  Attempt attempt;
  std::vector<FloatRange> ranges;  // by offset
  BufferId from;
  BufferId sums;
  float scale = 0;
  float learning_rate = 0;
  float fraction = 1;
  double clip = 0;  // 0: none; else the norms of all grains are in `sums`
  std::uint64_t steps = 0;
};
// Copies parameters from where holders have them to the own ones, at the same offsets, then takes
// the digest of bucket `digest_bucket`.
struct TakeParameters {
  std::uint64_t op = 0;
  RoundId round;
  Attempt attempt;
  std::vector<SourceRange> from;
  std::uint32_t digest_bucket = 0;
};
// This part of the optimizer's state is held no longer.
struct DropHeldState {
  std::vector<FloatRange> ranges;
};
// The content of this buffer, but for `kept` (ascending, apart), is needed no longer, and nobody
// uses it. From here on other parts of it will be written than until now. Its pages go back, so
// that those of both do not add up. (An arena's cannot.)
struct GiveBack {
  BufferId buffer;
  std::vector<FloatRange> kept;
};
// Copies ranges of mapped blocks into the own sum buffer, at the same offsets.
struct CopySums {
  std::uint64_t op = 0;
  std::vector<SourceRange> from;
  BufferId to;
};
// Updates the parameters and the optimizer's state in `slices`, then takes the digest of the
// parameters in bucket `digest_bucket`. Where the program makes the update itself
// (Layout::Copies::kWhole) the reduction thread only gathers the gradient. The compute thread does
// the rest in its own time: operations that do not touch the state go on meanwhile.
struct Apply {
  std::uint64_t op = 0;
  RoundId round;
  Attempt attempt;
  std::vector<SourceRange> slices;  // of the parameters, by offset
  std::uint32_t parts = 1;          // whose sums they are: Layout::SumEntries
  // With clipping: the doubles of all grains, by offset; factor = min(1, clip / (scale * norm)).
  std::vector<SourceRange> norms;
  float scale = 0;
  float learning_rate = 0;
  float fraction = 1;
  std::uint64_t samples = 0;
  double clip = 0;  // 0: none
  std::uint64_t steps = 0;
  double position = 0;  // of the schedule, for the program
  std::uint32_t digest_bucket = 0;
};
// Copies Layout::copy(bucket) of the parameters and each state tensor to `to`, for a joiner.
struct CopyState {
  std::uint64_t op = 0;
  std::uint32_t bucket = 0;
  BufferId to;
};
enum class SnapshotKind : std::uint8_t { kEvaluation, kCheckpoint, kCompute };
// Copies the parameters (kCheckpoint: and the optimizer's state) aside. There is one snapshot of
// each kind; the new one takes the place of the old. kCompute: for work on a copy, taken while the
// compute thread is in no unit.
struct TakeSnapshot {
  std::uint64_t op = 0;
  SnapshotKind kind = SnapshotKind::kEvaluation;
  // Where the parameters are that are copied: the own ones, or those of a version that is held.
  BufferId parameters = {BufferKind::kState, 0, {}};
};
// SHA-256 of the parameters, hex, in OpDone.text.
struct DigestState {
  std::uint64_t op = 0;
};
// The digest of the parameters and the optimizer's state, one tensor after the other, in
// OpDone.replica.
struct DigestReplica {
  std::uint64_t op = 0;
  RoundId round;  // the last one in it, of which a checkpoint is made
};

// The parameters that this worker's program begins with, empty optimizer state.
struct InitializeState {
  bool parameters = true;  // false: they have come by StoreState
};
// A chunk of a checkpoint, or of another worker's first parameters. `bytes` lie in the event's
// message.
struct StoreState {
  std::uint32_t tensor = 0;
  std::uint64_t offset = 0;  // bytes
  std::span<const std::byte> bytes;
  RoundId round;  // the last one in it, of a checkpoint
};
// Copy this range out of the checkpoint snapshot now and send it as StateChunk; ChunkUploaded once
// it has left.
struct UploadChunk {
  RoundId round;
  std::uint32_t tensor = 0;
  std::uint64_t offset = 0;  // bytes
  std::uint64_t bytes = 0;
  bool last = false;
};

// Copy this range out of the parameters now and send it as Given; ChunkGiven once it has left.
// Never while they are updated.
struct GiveChunk {
  std::uint32_t giving = 0;
  std::uint64_t offset = 0;  // bytes
  std::uint64_t bytes = 0;
};

// Deliver TimerDue at `at` or soon after; replaces the one before.
struct SetTimer {
  Time at;
};
// Replaces what slows this worker down.
struct Slowdown {
  std::string specs;  // one in each line
};
// The worker's part in the job is over; nothing for the compute thread follows.
struct Exit {
  std::string reason;
  bool failed = false;
  bool left = false;  // before the end, as it was asked to
  // Why the parameters are not the job's last ones; empty: they are, and this is their SHA-256, hex
  // (empty where the coordinator did not wait for it).
  std::string params_digest = {};
  std::string not_final = {};
  bool early = false;  // the job has ended before all of its rounds were done
  // As in StartWork, where the parameters are the job's last ones.
  std::vector<SealedPart> applied = {};
  bool copied = false;
};
// The coordinator is gone and this worker keeps what it has: the compute thread is to look for the
// next one. Peers are served meanwhile, and what is committed is applied.
struct Orphaned {
  std::string reason;
};
// The last action for a coordinator that is gone. `held`: what the parameters are; none where they
// are not those before any round, and then `lack` says why, for people.
struct Detached {
  std::optional<HeldParameters> held;
  // With optimizer.replicas: of these shards, ascending; `whole`: the parameters of all others are
  // here as well. Parameters and state lie where those of a replicated job do.
  std::vector<std::uint32_t> shards = {};
  bool whole = true;
  std::string lack;
  // As of StartWork: what became of this worker's parts, whose numbers are void from here on.
  std::vector<SealedPart> applied = {};
  bool copied = false;
  std::uint32_t next_generation = 1;  // of the arena's blocks; MachineConfig::first_generation
  EpochsSeen epochs_seen;             // MachineConfig::epochs_seen
};
struct Log {
  std::string line;
};

}  // namespace action

using Action =
    std::variant<action::ToCoordinator, action::ToPeer, action::UseTransport, action::ConnectPeer,
                 action::MapPeer, action::UnmapPeer, action::ClosePeer, action::Fetch,
                 action::GiveUpFetch, action::StoreInline, action::OpenBlock, action::GiveBack,
                 action::StartWork, action::WakeCompute, action::VoidWork, action::EvaluateChunk,
                 action::EpochEnd, action::Reduce, action::CopySums, action::UpdateHeld,
                 action::TakeParameters, action::DropHeldState, action::Apply, action::CopyState,
                 action::TakeSnapshot, action::DigestState, action::DigestReplica,
                 action::InitializeState, action::StoreState, action::UploadChunk,
                 action::GiveChunk, action::SetTimer, action::Slowdown, action::Exit,
                 action::Orphaned, action::Detached, action::Log>;
using Actions = std::vector<Action>;

}  // namespace lockstep::worker
