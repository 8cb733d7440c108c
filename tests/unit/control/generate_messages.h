// Random control messages that keep what base/messages.h promises; every field is drawn.
#pragma once

#include <rapidcheck.h>
#include <cmath>

#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/ini.h"
#include "base/messages.h"

namespace lockstep {

template <class T>
T Any() {
  return *rc::gen::arbitrary<T>();
}

// Texts come out of a decoder on one line.
inline std::string AnyText() { return Printable(*rc::gen::arbitrary<std::string>()); }

template <>
inline float Any<float>() {
  return static_cast<float>(*rc::gen::inRange(-1000000, 1000000)) / 7.0f;
}

template <>
inline double Any<double>() {
  return *rc::gen::inRange(-1000000, 1000000) / 7.0;
}

// Of a monotonic clock.
inline std::int64_t AnyTime() { return Any<std::int64_t>() & ((std::int64_t{1} << 60) - 1); }

template <>
inline RoundId Any<RoundId>() {
  return RoundId(Any<std::uint64_t>());
}
template <>
inline Attempt Any<Attempt>() {
  return Attempt(Any<std::uint32_t>());
}
template <>
inline Term Any<Term>() {
  return Term(Any<std::uint32_t>());
}
template <>
inline Epoch Any<Epoch>() {
  return Epoch(Any<std::uint32_t>());
}
template <>
inline PartIndex Any<PartIndex>() {
  return PartIndex(*rc::gen::inRange<std::uint8_t>(0, kMaxParts));
}
template <>
inline MemberId Any<MemberId>() {
  return {WorkerId(Any<std::uint32_t>()), Incarnation(Any<std::uint32_t>())};
}
template <>
inline SampleRange Any<SampleRange>() {
  const auto [low, high] = std::minmax({Any<std::uint64_t>(), Any<std::uint64_t>()});
  return {low, high};
}
template <>
inline Unit Any<Unit>() {
  return {UnitIndex(Any<std::uint32_t>()), Any<SampleRange>()};
}

// `draw` called a few times.
template <class Draw>
auto Several(Draw&& draw) {
  std::vector<decltype(draw())> items(*rc::gen::inRange<std::size_t>(0, 5));
  for (auto& item : items) item = draw();
  return items;
}

// Ascending, each worker once, at least one.
inline std::vector<MemberId> SomeMembers() {
  auto members = Several(Any<MemberId>);
  members.push_back(Any<MemberId>());
  std::ranges::sort(members);
  const auto rest = std::ranges::unique(members, {}, &MemberId::worker);
  members.erase(rest.begin(), rest.end());
  return members;
}

inline std::vector<std::byte> SomeBytes(std::size_t size) {
  std::vector<std::byte> bytes(size);
  for (auto& byte : bytes) byte = static_cast<std::byte>(Any<std::uint8_t>());
  return bytes;
}

template <>
inline OwnerMap Any<OwnerMap>() {
  OwnerMap map{Any<std::uint32_t>(), {}};
  for (const MemberId& member : SomeMembers()) {
    map.owners.push_back({member, *rc::gen::inRange(1u, 1000u)});
  }
  if (Any<bool>()) {
    map.holders = Several([] { return ShardHolders{SomeMembers()}; });
  } else {
    map.algorithm = *rc::gen::element(ExchangeAlgorithm::kDirect, ExchangeAlgorithm::kRing,
                                      ExchangeAlgorithm::kTree);
  }
  return map;
}

template <>
inline Plan Any<Plan>() {
  const bool relaxed = Any<bool>();
  Plan plan{Any<RoundId>(),
            Any<Epoch>(),
            {},
            Any<OwnerMap>(),
            SomeMembers(),
            relaxed,
            relaxed && Any<bool>(),
            Any<bool>() ? 0.125f : 0.0f,
            Any<Attempt>(),
            std::abs(Any<double>())};
  for (const MemberId& member : SomeMembers()) {
    plan.assignments.push_back(
        {member, Several(Any<Unit>), {.units = Any<std::uint32_t>(), .guided = Any<bool>()}});
  }
  plan.audits = Several([] { return Audit{Any<MemberId>(), Any<Unit>(), SomeMembers()}; });
  return plan;
}

template <>
inline PeerInfo Any<PeerInfo>() {
  return {Any<MemberId>(), AnyText(), AnyText(), AnyText()};
}

inline std::vector<Metric> AnyMetrics() {
  return Several([] {
    const auto reduction = static_cast<Reduction>(*rc::gen::inRange(0u, kReductions));
    const std::uint64_t samples = reduction == Reduction::kMean ? *rc::gen::inRange(1, 1000) : 0;
    return Metric{std::to_string(Any<std::uint32_t>()), reduction, Any<double>(), samples};
  });
}

inline msg::SentBytes AnySentBytes() {
  const auto [early, all] = std::minmax({Any<std::uint32_t>(), Any<std::uint32_t>()});
  return {all, early, AnyTime()};
}

inline std::optional<std::uint64_t> AnyDivisor() {
  if (Any<bool>()) return std::nullopt;
  return Any<std::uint32_t>();
}

inline std::optional<double> AnySquares() {
  const std::optional<std::uint64_t> some = AnyDivisor();
  if (!some) return std::nullopt;
  return static_cast<double>(*some) / 8;
}

inline msg::Reading AnyReading() { return {AnyDivisor(), AnyDivisor()}; }

template <>
inline msg::Commit Any<msg::Commit>() {
  msg::Commit commit;
  commit.term = Any<Term>();
  commit.round = Any<RoundId>();
  commit.attempt = Any<Attempt>();
  commit.epoch = Any<Epoch>();
  for (const MemberId& member : SomeMembers()) {
    commit.parts.push_back({member, Any<PartIndex>(), Any<float>(), Any<std::uint64_t>()});
  }
  commit.owners = Any<OwnerMap>();
  commit.members = SomeMembers();
  commit.samples = Any<std::uint64_t>();
  commit.scale = Any<float>();
  commit.learning_rate = Any<float>();
  commit.fraction = static_cast<float>(*rc::gen::inRange(1, 9)) / 8;
  commit.update = Any<std::uint64_t>();
  commit.steps = *rc::gen::inRange<std::uint64_t>(1, 1 << 20);
  if (Any<bool>()) commit.next = Any<Plan>();
  if (Any<bool>()) commit.checkpoint_writer = Any<MemberId>();
  commit.evaluation = Any<std::uint32_t>();
  commit.loss = Any<double>();
  commit.position = std::abs(Any<double>());
  commit.metrics = AnyMetrics();
  commit.policy = AnyText();
  commit.slow = Several([] { return *rc::gen::inRange<std::uint64_t>(0, 4096); });
  return commit;
}

template <>
inline msg::StateChunk Any<msg::StateChunk>() {
  return {Any<RoundId>(), Any<std::uint32_t>(), Any<std::uint64_t>() / 2, Any<bool>(),
          SomeBytes(*rc::gen::inRange<std::size_t>(0, 50))};
}

inline std::string AnyAddress() {
  return "10.0.0.1:" + std::to_string(*rc::gen::inRange(1, 65536));
}

inline msg::ToWorker AnyToWorker(std::size_t kind) {
  static_assert(std::variant_size_v<msg::ToWorker> == 24);
  switch (kind) {
    case 0: {
      msg::Welcome welcome{Any<MemberId>(), Any<Term>(),          AnyText(), SomeBytes(32),
                           AnyText(),       Any<std::uint32_t>(), AnyTime(), AnyText(),
                           AnyText(),       Several(AnyAddress)};
      welcome.takes_costs = Any<bool>();
      if (Any<bool>())
        welcome.decided = HeldParameters{Any<Term>(), Any<RoundId>(), Any<Attempt>()};
      return welcome;
    }
    case 1:
      return msg::Refuse{AnyText(), Any<bool>()};
    case 2:
      return msg::Form{Any<std::uint32_t>(), AnyText(), Several(Any<PeerInfo>),
                       Several(Any<PeerInfo>)};
    case 3:
      return msg::MemberLeft{Any<MemberId>(), AnyText()};
    case 4:
      return msg::Start{
          *rc::gen::element(StateSource::kSeed, StateSource::kCheckpoint, StateSource::kPeers,
                            StateSource::kGiven, StateSource::kHeld),
          Any<Plan>(), Any<std::uint64_t>()};
    case 5:
      return Any<msg::Commit>();
    case 6:
      return msg::Revoke{Any<RoundId>(), Any<std::uint32_t>(), Any<std::uint32_t>()};
    case 7:
      return msg::Assign{Any<RoundId>(), Several(Any<Unit>), Any<std::uint32_t>()};
    case 8:
      return msg::FenceRound{Any<RoundId>(), Any<std::uint32_t>()};
    case 9:
      return msg::NewOwners{Any<RoundId>(), Any<OwnerMap>()};
    case 10:
      return msg::FenceAttempt{Any<Term>(), Any<RoundId>(), Any<Attempt>(), Any<std::uint32_t>()};
    case 11:
      return msg::TakeSums{Any<msg::Commit>(), Any<MemberId>()};
    case 12:
      return msg::CatchUp{Any<MemberId>(), Any<RoundId>(), Any<std::uint32_t>()};
    case 13:
      return msg::Evaluate{Any<std::uint32_t>(), Any<RoundId>(), Any<SampleRange>()};
    case 14:
      return Any<msg::StateChunk>();
    case 15:
      return msg::Finish{AnyText(), Any<bool>(), Any<bool>()};
    case 16:
      return msg::SetSlowdown{AnyText()};
    case 17:
      return msg::AskToLeave{AnyText()};
    case 18:
      return msg::Hedge{Any<Term>(), Any<RoundId>(), Any<Attempt>(), Any<MemberId>(),
                        Any<MemberId>()};
    case 19:
      return msg::Ping{Any<std::uint64_t>(), AnyTime()};
    case 20:
      return msg::GiveParameters{Any<std::uint32_t>(), Any<std::uint64_t>()};
    case 21:
      return msg::Standbys{Several(AnyAddress)};
    case 22:
      return msg::Followed{Any<std::uint64_t>(),
                           static_cast<msg::Followed::Part>(*rc::gen::inRange(0, 7)), Any<bool>(),
                           AnyText()};
    default:
      return msg::Decide{Any<RoundId>(), Any<Attempt>()};
  }
}

template <>
inline msg::Ready Any<msg::Ready>() {
  msg::Ready ready;
  ready.transports = Several([] { return TransportOffer{AnyText(), AnyText(), AnyText()}; });
  ready.mapping_address = AnyText();
  ready.dataset_digest = AnyText();
  ready.slowdowns = AnyText();
  ready.train_samples = Any<std::uint64_t>();
  ready.test_samples = Any<std::uint64_t>();
  ready.state_tensors = Any<std::uint32_t>();
  ready.tensors = Several([] {
    return TensorInfo{AnyText(), Several([] { return *rc::gen::inRange<std::uint64_t>(1, 9000); })};
  });
  for (const TensorInfo& tensor : ready.tensors) {
    std::uint64_t values = 1;
    for (const std::uint64_t size : tensor.shape) values *= size;
    ready.parameter_count += values;
  }
  if (ready.tensors.empty()) ready.parameter_count = Any<std::uint64_t>();
  ready.state_names = Several(AnyText);
  ready.own_parameters = Any<bool>();
  ready.run_bound = {Any<std::uint64_t>(), Any<std::uint32_t>()};
  if (Any<bool>()) {
    ready.held = HeldParameters{Any<Term>(), Any<RoundId>(), std::nullopt};
    if (Any<bool>()) ready.held->attempt = Any<Attempt>();
    std::set<std::uint64_t> shards;
    for (const std::uint64_t shard :
         Several([] { return *rc::gen::inRange<std::uint64_t>(0, 4096); })) {
      shards.insert(shard);
    }
    ready.held_shards.assign(shards.begin(), shards.end());
  }
  return ready;
}

inline msg::FromWorker AnyFromWorker(std::size_t kind) {
  static_assert(std::variant_size_v<msg::FromWorker> == 30);
  switch (kind) {
    case 0: {
      msg::Hello hello{Any<std::uint32_t>(), AnyText(), AnyText(), Any<std::uint64_t>(), AnyText(),
                       std::nullopt,         AnyText()};
      if (Any<bool>()) hello.wanted = WorkerId(Any<std::uint32_t>());
      if (Any<bool>())
        hello.standby = msg::StandbyHello{AnyAddress(), Any<bool>(), Any<Term>(), AnyText()};
      return hello;
    }
    case 1:
      return Any<msg::Ready>();
    case 2:
      return msg::Reached{Any<std::uint32_t>(), Several([] {
                            return PeerPath{Any<MemberId>(), Any<bool>(), AnyText(),
                                            Any<bool>(),     AnyText(),   Any<double>()};
                          })};
    case 3:
      return msg::Progress{Any<RoundId>(), Any<std::uint32_t>(), Any<std::uint32_t>(),
                           Any<Attempt>()};
    case 4:
      return msg::Sealed{Any<RoundId>(),
                         Any<PartIndex>(),
                         Any<std::uint64_t>(),
                         Any<double>(),
                         Several([] {
                           const auto [start, end] = std::minmax({AnyTime(), AnyTime()});
                           return UnitTiming{Any<Unit>(), start, end};
                         }),
                         AnyTime(),
                         Any<Attempt>(),
                         Several([] { return Any<std::uint64_t>(); }),
                         AnyMetrics(),
                         AnySentBytes(),
                         AnyDivisor(),
                         AnyReading(),
                         AnySquares()};
    case 5:
      return msg::Receipts{Any<RoundId>(), Any<std::uint32_t>(), Several([] {
                             return ReceivedPart{Any<MemberId>(), Any<PartIndex>()};
                           })};
    case 6:
      return msg::Revoked{Any<RoundId>(), Any<std::uint32_t>(), Any<std::uint32_t>(), Any<bool>()};
    case 7:
      return msg::Published{
          Any<RoundId>(), Any<Attempt>(),
          Any<bool>() ? std::optional(WorkerId(Any<std::uint32_t>())) : std::nullopt};
    case 8:
      return msg::Applied{Any<RoundId>(),
                          Any<Attempt>(),
                          Any<std::uint32_t>(),
                          Any<std::uint64_t>(),
                          AnyTime(),
                          msg::RunTotals{Any<std::uint64_t>(), AnyTime(), AnyReading()}};
    case 9:
      return msg::HoldAnswer{Any<Term>(), Any<RoundId>(), Any<Attempt>(), Any<bool>(),
                             Any<std::uint32_t>()};
    case 10:
      return msg::Behind{Any<RoundId>(), Any<bool>(), AnyText(), Any<std::uint32_t>()};
    case 11:
      return msg::Level{Any<RoundId>(), Any<std::uint32_t>()};
    case 12:
      return msg::Unreachable{Any<MemberId>(), AnyText()};
    case 13: {
      const SampleRange range = Any<SampleRange>();
      return msg::EvaluationResult{Any<std::uint32_t>(), range, Any<double>(), range.size() / 2};
    }
    case 14:
      return Any<msg::StateChunk>();
    case 15:
      return msg::Final{Any<RoundId>(), AnyText()};
    case 16:
      return msg::Leave{AnyText()};
    case 17:
      return msg::Pong{Any<std::uint64_t>(), AnyTime(), AnyTime(), Any<std::uint64_t>(),
                       msg::RunInHand{AnyTime(), Any<std::uint32_t>()}};
    case 18:
      return msg::Copied{Any<std::uint32_t>(), Any<std::uint64_t>()};
    case 19:
      return msg::CheckpointTaken{Any<std::uint64_t>()};
    case 20:
      return msg::ReplicaDigest{
          Any<RoundId>(), Any<Attempt>(), {Any<std::uint64_t>(), Any<std::uint64_t>()}};
    case 21:
      return msg::StopAsked{AnyText()};
    case 22:
      return msg::NotFinite{Any<RoundId>(), Any<Attempt>(), {Any<std::uint64_t>(), 0}};
    case 23:
      return msg::Away{1 + AnyTime() % kMostAbsence.count(), AnyText()};
    case 24:
      return msg::Back{};
    case 26:
      return msg::Noted{Any<std::uint64_t>(), Any<Term>()};
    case 25:
      return msg::Given{Any<std::uint32_t>(), Any<std::uint64_t>() / 2,
                        SomeBytes(*rc::gen::inRange<std::size_t>(0, 50))};
    case 28:
      return msg::Costs{Any<Epoch>(), Any<std::uint64_t>() / 2, 1 + *rc::gen::inRange(0, 9) / 4.0,
                        SomeBytes(2 * *rc::gen::inRange<std::size_t>(1, 50))};
    case 27: {
      msg::Audited audited;
      audited.round = Any<RoundId>();
      audited.plan = Any<Attempt>();
      audited.unit = Any<Unit>();
      audited.bits = {Any<std::uint64_t>(), Any<std::uint64_t>()};
      audited.squares = Any<double>();
      for (std::size_t i = 0; i < msg::kAuditCounters; ++i) {
        audited.sketch.push_back(Any<bool>() ? 0.5 : -2.0);
      }
      audited.arithmetic = AnyText();
      return audited;
    }
    default:
      return msg::Held{Any<RoundId>(), Any<Attempt>()};
  }
}

}  // namespace lockstep
