// The small messages that workers send to each other, and their bytes. Little endian; a kind byte,
// the fields, then for PartReady and SumReady the floats that ride along. The decoder does not
// trust: a message that is cut short, too long or out of range is an error, never a crash. The
// receiver of the message checks what the numbers mean.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <variant>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "worker/layout/layout.h"

// In a round without trouble: PartReady from every worker to every owner, once for each few buckets
// and once when sealed, and SumReady from every owner to every member. MapState once for each
// connection. Where an attempt is taken from a holder: SumWant to it, SumReady back. A worker that
// catches up: StateWant to the donor, StateReady back, StateTaken when it is here; one bucket at a
// time.

namespace lockstep::worker {

// Kinds of PieceName::kind.
enum class PieceKind : std::uint32_t {
  kContribution = 1,  // attempt: the contribution's tag; round, part
  kSum = 2,           // round, attempt
  kState = 3,         // attempt: the tag of StateReady; part: index of the state-out buffer
  kParameters = 4,    // round: the version of ParametersReady
  kHeldState = 5,     // round: the same; part: 0 the parameters, 1.. the optimizer's tensors
  kPartialSum = 6,    // round, attempt, owner: of what is passed on to it
};

inline constexpr std::size_t kMaxInlineRanges = 1024;

// Floats that ride on a message, in the type that the job exchanges: these ranges, one behind the
// other.
struct InlineRanges {
  std::vector<FloatRange> ranges;
  std::uint64_t Floats() const;
  bool operator==(const InlineRanges&) const = default;
};

// To an owner: the first `buckets` buckets of this part are final and may be fetched.
struct PartReady {
  RoundId round;
  PartIndex part;
  std::uint32_t tag = 0;     // of this use of the buffer: the generation of the block, and in the
                             // name of each piece; never used again by this incarnation
  std::uint32_t buffer = 0;  // index among the contribution buffers, for who maps them
  std::uint32_t buckets = 0;
  bool sealed = false;  // nothing will be added; `buckets` is all of them
  Attempt plan;         // Plan::attempt of the plan of `round` that it was computed for
  InlineRanges inlined;
  bool operator==(const PartReady&) const = default;
};

// How much of one owner's shard is there to be passed on (routes.h).
struct PassedOn {
  std::uint32_t shard = 0;   // the owner's place in the map
  bool whole = false;        // the sums of all contributors; else of those below and of the sender
  std::uint32_t pieces = 0;  // the first so many (RoutedSums)
  bool operator==(const PassedOn&) const = default;
};

// Begins the all-gather. From an owner to all members: its shard of this attempt may be fetched or
// read. From who stands in for an owner: that one's shard. From a holder, as the answer to SumWant:
// all shards may be fetched. Where sums are passed on: so much may be fetched by this neighbour.
struct SumReady {
  Term term;
  RoundId round;
  Attempt attempt;
  std::uint32_t map_version = 0;
  std::uint32_t buffer = 0;  // index among the sum buffers, for who maps them
  std::uint32_t generation = 0;
  // Answers to SumWant: all shards can be had here, or they cannot.
  bool whole = false;
  bool gone = false;
  std::optional<WorkerId> stands_in_for;
  std::optional<PassedOn> passed;
  InlineRanges inlined;
  bool operator==(const SumReady&) const = default;
};

// To a member that holds all shards of an attempt (TakeSums): make them fit to be fetched, then say
// SumReady.
struct SumWant {
  Term term;
  RoundId round;
  Attempt attempt;
  bool operator==(const SumWant&) const = default;
};

// Whether the sender reads the receiver's memory through the mapping. A pair is mapped when both
// do.
struct MapState {
  bool maps_you = false;
  bool operator==(const MapState&) const = default;
};

// From a joiner to its donor: copy me this bucket of your state, as of at least `min_version`
// applied rounds.
struct StateWant {
  std::uint32_t bucket = 0;
  std::uint64_t min_version = 0;
  bool operator==(const StateWant&) const = default;
};

// The copy lies in state-out buffer `buffer`: all rounds before `version` are applied, the last of
// them as `attempt` has it. `gone`: the donor cannot give it.
struct StateReady {
  std::uint32_t bucket = 0;
  std::uint64_t version = 0;
  Attempt attempt;
  std::uint32_t tag = 0;
  std::uint32_t buffer = 0;
  bool gone = false;
  bool operator==(const StateReady&) const = default;
};

// The joiner needs this copy no longer.
struct StateTaken {
  std::uint32_t tag = 0;
  bool operator==(const StateTaken&) const = default;
};

// From a holder to all members: it has updated these shards, of as many as the job has, with all
// rounds before `version`. The last of them is as `attempt` has it. Its parameters are in that sum
// buffer, and until the round `version` is decided it has their state as well.
struct ParametersReady {
  std::uint64_t version = 0;
  Attempt attempt;
  std::uint32_t buffer = 0;
  std::uint32_t generation = 0;
  std::vector<std::uint32_t> shards;  // ascending
  bool operator==(const ParametersReady&) const = default;
};

// To a peer that was told nothing else for a while (worker/core/heartbeat.h).
struct Alive {
  bool operator==(const Alive&) const = default;
};

using PeerMessage = std::variant<PartReady, SumReady, SumWant, MapState, StateWant, StateReady,
                                 StateTaken, Alive, ParametersReady>;

// The message without the floats: `inlined.Floats()` of them are to be put behind it.
std::vector<std::byte> EncodePeerMessage(const PeerMessage& message);

struct DecodedPeerMessage {
  PeerMessage message;
  std::span<const std::byte> floats;  // within `bytes`; inlined.Floats() * number_bytes
};
// `number_bytes`: Layout::number_bytes of the job.
Result<DecodedPeerMessage> DecodePeerMessage(std::span<const std::byte> bytes,
                                             std::uint64_t number_bytes = sizeof(float));

}  // namespace lockstep::worker
