// The fields of each message, in the order of lockstep.proto, and the rules for them.
#include "transport/control/codec.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <utility>

#include "base/host_port.h"
#include "base/slowdown_spec.h"
#include "transport/control/fields.h"

namespace lockstep::transport::control {

// --- what several messages have

// A monotonic clock is never negative, and 2^60 ns are 36 years: sums and differences of a few such
// times stay within 64 bits.
static void RequireTime(std::int64_t ns, Checks& checks) {
  checks.Require(ns >= 0 && ns <= std::int64_t{1} << 60, "a time that cannot be");
}

void Fields(auto& f, Of<MemberId> auto& m) { f(m.worker, m.incarnation); }

void Fields(auto& f, Of<SampleRange> auto& m) { f(m.from, m.to); }
void Validate(const SampleRange& m, Checks& checks) {
  checks.Require(m.from <= m.to, "a range that ends before it begins");
}

void Fields(auto& f, Of<Unit> auto& m) { f(m.index, m.range); }

// The last number of the run must be a valid number too.
static bool Numbers(std::uint32_t first, std::uint32_t count) {
  return count <= std::numeric_limits<std::uint32_t>::max() - first || count == 1;
}

void Fields(auto& f, Of<MemberRun> auto& m) { f(m.first.worker, m.first.incarnation, m.count); }
void Validate(const MemberRun& m, Checks& checks) {
  checks.Require(m.count > 0, "a run of nobody");
  checks.Require(Numbers(m.first.worker.value, m.count), "numbers beyond all workers");
}

void Fields(auto& f, Of<OwnerRun> auto& m) { f(m.members, m.weight); }
void Validate(const OwnerRun& m, Checks& checks) {
  checks.Require(m.weight > 0, "an owner without weight");
}

void Fields(auto& f, Of<PartRun> auto& m) { f(m.members, m.part, m.weight, m.samples); }
void Validate(const PartRun& m, Checks& checks) {
  checks.Require(std::isfinite(m.weight), "a weight that is no number");
}

void Fields(auto& f, Of<ReceivedRun> auto& m) { f(m.members, m.part); }

void Fields(auto& f, Of<AssignmentRun> auto& m) {
  f(m.members, m.units, m.runs.units, m.runs.guided);
}

void Fields(auto& f, Of<UnitRun> auto& m) { f(m.first, m.count, m.range.from, m.range.to); }
void Validate(const UnitRun& m, Checks& checks) {
  checks.Require(m.count > 0, "a run of no units");
  Validate(m.range, checks);
  checks.Require(m.count == 1 || m.range.size() <= kMaxCutSamples, "a range that is too long");
  checks.Require(Numbers(m.first.value, m.count), "indices beyond all units");
}

void Fields(auto& f, Of<ShardHolders> auto& m) { f(AtMost(kMaxMembers, m.members)); }
void Validate(const ShardHolders& m, Checks& checks) {
  checks.Require(!m.members.empty(), "a shard that nobody holds");
}

void Fields(auto& f, Of<OwnerMap> auto& m) {
  f(m.version, m.owners, AtMost(kMaxMembers, m.holders), m.algorithm);
}
void Validate(const OwnerMap& m, Checks& checks) {
  checks.Require(m.direct() || m.holders.empty(), "holders, and sums that are passed on");
}

void Fields(auto& f, Of<Audit> auto& m) { f(m.subject, m.unit, AtMost(kMaxMembers, m.by)); }
void Validate(const Audit& m, Checks& checks) {
  checks.Require(!m.by.empty(), "an audit by nobody");
}

void Fields(auto& f, Of<Plan> auto& m) {
  f(m.round, m.epoch, m.assignments, m.owners, m.members, m.relaxed, m.carries, m.local_rate,
    m.attempt, m.position, AtMost(kMaxMembers, m.audits));
}
void Validate(const Plan& m, Checks& checks) {
  checks.Require(m.relaxed || !m.carries, "work carried into a synchronous round");
  checks.Require(std::isfinite(m.local_rate), "a rate that is no number");
  checks.Require(m.position >= 0 && std::isfinite(m.position), "a schedule that cannot be there");
}

void Fields(auto& f, Of<msg::StateChunk> auto& m) {
  f(m.round, m.tensor, m.offset, m.last, m.bytes);
}
void Validate(const msg::StateChunk& m, Checks& checks) {
  checks.Require(m.bytes.size() <= kMaxChunkBytes, "too many bytes in a chunk");
  std::uint64_t end = 0;
  checks.Require(!__builtin_add_overflow(m.offset, m.bytes.size(), &end),
                 "a chunk beyond all tensors");
}

// A metric that is not finite comes from the program, and is no fault of the message.
void Fields(auto& f, Of<Metric> auto& m) { f(Text(m.name), m.reduction, m.value, m.samples); }
void Validate(const Metric& m, Checks& checks) {
  checks.Require(!m.name.empty() && m.name.size() <= kMaxMetricNameBytes,
                 "a metric's name that is empty or too long");
  checks.Require((m.reduction == Reduction::kMean) == (m.samples > 0),
                 "a mean over nothing, or samples of what is no mean");
}

void Fields(auto& f, Of<HeldParameters> auto& m) { f(m.term, m.next, m.attempt); }

// --- to a worker

void Fields(auto& f, Of<msg::Welcome> auto& m) {
  f(m.self, m.term, Text(m.job_id), m.job_key, m.config_text, m.workers, m.age_ns, Text(m.run_id),
    Text(m.run_dir), AtMost(msg::kMaxStandbys, m.standbys), m.decided, m.takes_costs);
}
static void ValidateStandbys(const std::vector<std::string>& addresses, Checks& checks) {
  checks.Require(
      std::ranges::all_of(addresses, [](const std::string& at) { return ParseHostPort(at).ok(); }),
      "a standby's address that is none");
}
void Validate(const msg::Welcome& m, Checks& checks) {
  ValidateStandbys(m.standbys, checks);
  checks.Require(m.job_key.size() == kJobKeyBytes, "a job key of the wrong length");
  checks.Require(m.config_text.size() <= kMaxConfigBytes, "a config that is too long");
  RequireTime(m.age_ns, checks);
}

void Fields(auto& f, Of<msg::Refuse> auto& m) { f(Text(m.reason), m.try_again); }

void Fields(auto& f, Of<PeerInfo> auto& m) {
  f(m.member, Address(m.data_address), Address(m.mapping_address), Text(m.host_id));
}

void Fields(auto& f, Of<msg::Form> auto& m) {
  f(m.formation, Text(m.transport), AtMost(kMaxMembers, m.connect_to),
    AtMost(kMaxMembers, m.expect));
}

void Fields(auto& f, Of<msg::MemberLeft> auto& m) { f(m.member, Text(m.reason)); }

void Fields(auto& f, Of<msg::Start> auto& m) {
  f(m.source, m.plan, m.total_samples_before, m.checkpoint_writer, m.evaluation);
}

void Fields(auto& f, Of<msg::Commit> auto& m) {
  f(m.term, m.round, m.attempt, m.epoch, m.parts, m.owners, m.members, m.samples, m.scale,
    m.learning_rate, m.update, m.next, m.checkpoint_writer, m.evaluation, m.fraction, m.steps,
    m.loss, AtMost(kMaxMetrics, m.metrics), Text(m.policy), m.slow, m.position);
}
void Validate(const msg::Commit& m, Checks& checks) {
  checks.Require(m.position >= 0 && std::isfinite(m.position), "a schedule that cannot be there");
  checks.Require(std::isfinite(m.scale) && std::isfinite(m.learning_rate),
                 "a scalar that is no number");
  checks.Require(m.fraction > 0 && std::isfinite(m.fraction),
                 "an update that is no part of a step");
  checks.Require(m.steps > 0, "an update before the first step");
  checks.Require(std::isfinite(m.loss), "a committed loss that is no number");
  checks.Require(
      m.slow.size() <= kMaxMembers &&
          std::ranges::all_of(m.slow, [](std::uint64_t worker) { return worker < kMaxMembers; }),
      "slow workers that cannot be");
}

void Fields(auto& f, Of<msg::Revoke> auto& m) { f(m.round, m.from, m.order); }

void Fields(auto& f, Of<msg::Assign> auto& m) { f(m.round, m.units, m.order); }

void Fields(auto& f, Of<msg::FenceRound> auto& m) { f(m.round, m.order); }

void Fields(auto& f, Of<msg::NewOwners> auto& m) { f(m.round, m.owners); }

void Fields(auto& f, Of<msg::FenceAttempt> auto& m) { f(m.term, m.round, m.attempt, m.order); }

void Fields(auto& f, Of<msg::Hedge> auto& m) { f(m.term, m.round, m.attempt, m.owner, m.by); }

void Fields(auto& f, Of<msg::Decide> auto& m) { f(m.round, m.attempt); }

void Fields(auto& f, Of<msg::TakeSums> auto& m) { f(m.commit, m.holder); }

void Fields(auto& f, Of<msg::CatchUp> auto& m) {
  f(m.donor, m.open_round, m.order, AtMost(msg::kMostDonors - 1, m.others));
}

void Fields(auto& f, Of<msg::Evaluate> auto& m) { f(m.evaluation, m.round, m.range); }

void Fields(auto& f, Of<msg::Finish> auto& m) { f(Text(m.reason), m.failed, m.early); }

static void ValidateSlowdowns(const std::string& specs, Checks& checks) {
  checks.Require(specs.size() <= kMaxSlowdownBytes, "slow-downs that are too long");
}

void Fields(auto& f, Of<msg::SetSlowdown> auto& m) { f(m.specs); }
void Validate(const msg::SetSlowdown& m, Checks& checks) { ValidateSlowdowns(m.specs, checks); }

void Fields(auto& f, Of<msg::AskToLeave> auto& m) { f(Text(m.reason)); }

void Fields(auto& f, Of<msg::GiveParameters> auto& m) { f(m.giving, m.upto); }

void Fields(auto& f, Of<msg::Ping> auto& m) { f(m.sequence, m.sent_ns); }
void Validate(const msg::Ping& m, Checks& checks) { RequireTime(m.sent_ns, checks); }

void Fields(auto& f, Of<msg::Standbys> auto& m) { f(AtMost(msg::kMaxStandbys, m.addresses)); }
void Validate(const msg::Standbys& m, Checks& checks) { ValidateStandbys(m.addresses, checks); }

void Fields(auto& f, Of<msg::Followed> auto& m) { f(m.sequence, m.part, m.last, m.text); }
void Validate(const msg::Followed& m, Checks& checks) {
  checks.Require(m.text.size() <= kMaxChunkBytes, "too many bytes in a part of what is followed");
}

// The field numbers of the kinds in ToWorker.
constexpr std::array kToWorkerNumbers = {1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 20,
                                         12, 13, 14, 15, 16, 17, 19, 18, 21, 22, 23, 24};
static_assert(kToWorkerNumbers.size() == std::variant_size_v<msg::ToWorker>);

// --- of a worker

void Fields(auto& f, Of<msg::StandbyHello> auto& m) {
  f(Text(m.address), m.own_folder, m.leads, Text(m.run_id));
}
void Validate(const msg::StandbyHello& m, Checks& checks) { ValidateStandbys({m.address}, checks); }

void Fields(auto& f, Of<msg::Hello> auto& m) {
  f(m.protocol, Text(m.version), Text(m.host), m.pid, Text(m.device), m.wanted, Text(m.host_id),
    m.settings, m.standby);
}
void Validate(const msg::Hello& m, Checks& checks) {
  checks.Require(m.settings.size() <= kMaxSettingsBytes, "settings that are too long");
}

void Fields(auto& f, Of<TransportOffer> auto& m) {
  f(Text(m.name), Address(m.address), Text(m.error));
}

void Fields(auto& f, Of<TensorInfo> auto& m) { f(Text(m.name), m.shape); }
void Validate(const TensorInfo& m, Checks& checks) {
  checks.Require(m.shape.size() <= kMaxDimensions, "a tensor of too many dimensions");
}

void Fields(auto& f, Of<msg::Ready> auto& m) {
  f(AtMost(kMaxTransports, m.transports), Address(m.mapping_address), Text(m.dataset_digest),
    m.train_samples, m.test_samples, m.parameter_count, m.state_tensors,
    AtMost(kMaxTensors, m.tensors), AtMost(kMaxTensors, m.state_names), m.slowdowns,
    Text(m.initial_digest), m.run_bound.samples, m.run_bound.units, m.own_parameters, m.held,
    m.held_shards);
}
static bool Ascending(const std::vector<std::uint64_t>& numbers) {
  return std::ranges::adjacent_find(numbers, std::greater_equal()) == numbers.end();
}
// Names and shapes only describe; only their sum must be right.
void Validate(const msg::Ready& m, Checks& checks) {
  std::uint64_t values = 0;
  for (const TensorInfo& tensor : m.tensors) {
    std::uint64_t count = 1;
    for (const std::uint64_t extent : tensor.shape) {
      checks.Require(extent == 0 || count <= m.parameter_count / extent,
                     "a tensor is larger than the model");
      if (!checks.wrong().empty()) return;
      count *= extent;
    }
    checks.Require(count <= m.parameter_count - values, "the tensors are larger than the model");
    if (!checks.wrong().empty()) return;
    values += count;
  }
  checks.Require(m.tensors.empty() || values == m.parameter_count,
                 "the tensors are not the whole model");
  checks.Require(m.held_shards.empty() ||
                     (m.held && m.held_shards.back() < kMaxMembers && Ascending(m.held_shards)),
                 "shards that cannot be held");
  ValidateSlowdowns(m.slowdowns, checks);
}

void Fields(auto& f, Of<PeerPath> auto& m) {
  f(m.peer, m.reached, Text(m.error), m.mapped, Text(m.path), m.gb_per_second);
}
void Validate(const PeerPath& m, Checks& checks) {
  checks.Require(std::isfinite(m.gb_per_second), "a speed that is no number");
}

void Fields(auto& f, Of<msg::Reached> auto& m) { f(m.formation, AtMost(kMaxMembers, m.peers)); }

void Fields(auto& f, Of<msg::Progress> auto& m) { f(m.round, m.units_done, m.units_taken, m.plan); }

void Fields(auto& f, Of<UnitTiming> auto& m) { f(m.unit, m.start_ns, m.end_ns); }
void Validate(const UnitTiming& m, Checks& checks) {
  RequireTime(m.start_ns, checks);
  RequireTime(m.end_ns, checks);
  checks.Require(m.start_ns <= m.end_ns, "a unit that ends before it begins");
}

void Validate(const msg::Reading& m, Checks& checks) {
  checks.Require(m.waited_ns.value_or(0) <= std::uint64_t{1} << 60, "a time that cannot be");
  checks.Require(m.ahead.value_or(0) <= msg::kMaxSamplesAhead, "samples ahead that cannot be");
}

void Fields(auto& f, Of<msg::Sealed> auto& m) {
  f(m.round, m.part, m.samples, m.loss_sum, AtMost(kMaxUnits, m.units), m.sealed_ns, m.plan, m.runs,
    AtMost(kMaxMetrics, m.metrics), m.sent.all, m.sent.early, m.sent.since_ns, m.divisor,
    m.reading.waited_ns, m.reading.ahead, m.sampled_squares);
}
void Validate(const msg::Sealed& m, Checks& checks) {
  RequireTime(m.sealed_ns, checks);
  RequireTime(m.sent.since_ns, checks);
  // The bound is a petabyte: such numbers are added up over a job.
  checks.Require(m.sent.early <= m.sent.all && m.sent.all <= std::uint64_t{1} << 50,
                 "bytes sent that cannot be");
  checks.Require(m.divisor.value_or(0) <= kMaxPartDivisor, "a divisor that cannot be");
  const double squares = m.sampled_squares.value_or(0);
  checks.Require(std::isfinite(squares) && squares >= 0, "squares that cannot be");
  Validate(m.reading, checks);
}

void Fields(auto& f, Of<msg::Receipts> auto& m) { f(m.round, m.map_version, m.parts); }

void Fields(auto& f, Of<msg::Revoked> auto& m) { f(m.round, m.from, m.order, m.fenced); }

void Fields(auto& f, Of<msg::Published> auto& m) { f(m.round, m.attempt, m.stands_in_for); }

void Fields(auto& f, Of<msg::Applied> auto& m) {
  f(m.round, m.attempt, m.digest_slice, m.digest, m.applied_ns, m.runs.samples, m.runs.took_ns,
    m.runs.reading.waited_ns, m.runs.reading.ahead);
}
void Validate(const msg::Applied& m, Checks& checks) {
  RequireTime(m.applied_ns, checks);
  RequireTime(m.runs.took_ns, checks);
  Validate(m.runs.reading, checks);
}

void Fields(auto& f, Of<msg::Audited> auto& m) {
  f(m.round, m.plan, m.unit, m.bits.low, m.bits.high, m.squares, m.sketch, Text(m.arithmetic));
}
void Validate(const msg::Audited& m, Checks& checks) {
  checks.Require(m.sketch.size() == msg::kAuditCounters, "a sketch of another size");
}

void Fields(auto& f, Of<msg::Costs> auto& m) { f(m.epoch, m.from, m.scale, m.costs); }
void Validate(const msg::Costs& m, Checks& checks) {
  checks.Require(!m.costs.empty() && m.costs.size() % 2 == 0 && m.costs.size() <= 2 * m.kMost,
                 "costs of no samples, or of too many");
  checks.Require(std::isfinite(m.scale) && m.scale > 0, "costs of a scale that cannot be");
  std::uint64_t end = 0;
  checks.Require(!__builtin_add_overflow(m.from, m.costs.size(), &end), "costs beyond all samples");
}

void Fields(auto& f, Of<msg::HoldAnswer> auto& m) {
  f(m.term, m.round, m.attempt, m.holds_all, m.order);
}

void Fields(auto& f, Of<msg::Behind> auto& m) { f(m.applied, m.has_any, Text(m.reason), m.order); }

void Fields(auto& f, Of<msg::Copied> auto& m) { f(m.order, m.values); }

void Fields(auto& f, Of<msg::Level> auto& m) { f(m.round, m.order); }

void Fields(auto& f, Of<msg::Unreachable> auto& m) { f(m.peer, Text(m.reason)); }

void Fields(auto& f, Of<msg::EvaluationResult> auto& m) {
  f(m.evaluation, m.range, m.loss_sum, m.correct);
}
void Validate(const msg::EvaluationResult& m, Checks& checks) {
  checks.Require(m.correct <= m.range.to - m.range.from, "more hits than samples");
}

void Fields(auto& f, Of<msg::Final> auto& m) { f(m.round, Text(m.params_digest)); }

void Fields(auto& f, Of<msg::Leave> auto& m) { f(Text(m.reason)); }

void Fields(auto& f, Of<msg::Pong> auto& m) {
  f(m.sequence, m.ping_sent_ns, m.answered_ns, m.resident_bytes, m.run.lasts_ns, m.run.units);
}
void Validate(const msg::Pong& m, Checks& checks) {
  RequireTime(m.ping_sent_ns, checks);
  RequireTime(m.answered_ns, checks);
  RequireTime(m.run.lasts_ns, checks);
}

void Fields(auto& f, Of<msg::CheckpointTaken> auto& m) { f(m.bytes); }

void Fields(auto& f, Of<msg::Given> auto& m) { f(m.giving, m.offset, m.bytes); }
void Validate(const msg::Given& m, Checks& checks) {
  checks.Require(m.bytes.size() <= kMaxChunkBytes, "too many bytes in a chunk");
  std::uint64_t end = 0;
  checks.Require(!__builtin_add_overflow(m.offset, m.bytes.size(), &end),
                 "a chunk beyond all tensors");
}

void Fields(auto& f, Of<msg::ReplicaDigest> auto& m) {
  f(m.round, m.attempt, m.digest.low, m.digest.high);
}

void Fields(auto& f, Of<msg::Held> auto& m) { f(m.round, m.attempt); }
void Fields(auto& f, Of<msg::StopAsked> auto& m) { f(Text(m.reason)); }
void Fields(auto& f, Of<msg::NotFinite> auto& m) { f(m.round, m.attempt, m.parts); }

void Fields(auto& f, Of<msg::Away> auto& m) { f(m.at_most_ns, Text(m.reason)); }
void Validate(const msg::Away& m, Checks& checks) {
  checks.Require(m.at_most_ns > 0 && Duration(m.at_most_ns) <= kMostAbsence,
                 "an absence without an end");
}

void Fields(auto&, Of<msg::Back> auto&) {}

void Fields(auto& f, Of<msg::Noted> auto& m) { f(m.sequence, m.leads); }

// The field numbers of the kinds in FromWorker.
constexpr std::array kFromWorkerNumbers = {1,  2,  3,  4,  5,  6,  7,  8,  9,  10,
                                           11, 12, 13, 14, 15, 16, 17, 18, 19, 20,
                                           21, 22, 23, 24, 25, 26, 27, 28, 29, 30};
static_assert(kFromWorkerNumbers.size() == std::variant_size_v<msg::FromWorker>);

// --- any message

namespace {

template <class Wire, class Message>
std::string EncodeAs(const Message& message, const auto& numbers) {
  OnArena<Wire> out;
  const auto* field = Wire::descriptor()->FindFieldByNumber(numbers[message.index()]);
  Writer writer(out->GetReflection()->MutableMessage(out.get(), field));
  std::visit([&](const auto& kind) { Fields(writer, kind); }, message);
  return out->SerializeAsString();
}

template <class Wire, class Message>
Result<Message> DecodeAs(std::span<const std::byte> bytes, const auto& numbers,
                         std::string_view what) {
  OnArena<Wire> in;
  if (!ParseBounded(bytes, in.get())) {
    return Error{ErrorCode::kInvalid, fmt::format("bytes that are no {}", what)};
  }
  Message message;
  Checks checks;
  const int kind = in->kind_case();
  const auto read_if = [&]<std::size_t I>(std::integral_constant<std::size_t, I>) {
    if (numbers[I] != kind) return false;
    const auto* field = Wire::descriptor()->FindFieldByNumber(kind);
    Read(in->GetReflection()->GetMessage(*in, field), message.template emplace<I>(), checks);
    return true;
  };
  const bool known = [&]<std::size_t... I>(std::index_sequence<I...>) {
    return (read_if(std::integral_constant<std::size_t, I>()) || ...);
  }
  (std::make_index_sequence<std::variant_size_v<Message>>());
  checks.Require(known, "a kind that is not known here");
  if (checks.wrong().empty()) return message;
  return Error{ErrorCode::kInvalid,
               fmt::format("a {} (kind {}) with {}", what, kind, checks.wrong())};
}

}  // namespace

std::string Encode(const msg::ToWorker& message) {
  return EncodeAs<wire::ToWorker>(message, kToWorkerNumbers);
}

std::string Encode(const msg::FromWorker& message) {
  return EncodeAs<wire::FromWorker>(message, kFromWorkerNumbers);
}

Result<msg::ToWorker> DecodeToWorker(std::span<const std::byte> bytes) {
  return DecodeAs<wire::ToWorker, msg::ToWorker>(bytes, kToWorkerNumbers, "message to a worker");
}

Result<msg::FromWorker> DecodeFromWorker(std::span<const std::byte> bytes) {
  return DecodeAs<wire::FromWorker, msg::FromWorker>(bytes, kFromWorkerNumbers,
                                                     "message of a worker");
}

}  // namespace lockstep::transport::control
