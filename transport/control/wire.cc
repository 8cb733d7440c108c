#include "transport/control/wire.h"

#include <cmath>

#include "base/slowdown_spec.h"

namespace lockstep::transport::control {

void Put(const SampleRange& in, wire::SampleRange* out) {
  out->set_from(in.from);
  out->set_to(in.to);
}

void Put(const Unit& in, wire::Unit* out) {
  out->set_index(in.index.value);
  Put(in.range, out->mutable_range());
}

void Put(const MemberId& in, wire::MemberId* out) {
  out->set_worker(in.worker.value);
  out->set_incarnation(in.incarnation.value);
}

void Put(const OwnerMap& in, wire::OwnerMap* out) {
  out->set_version(in.version);
  for (const OwnerShare& share : in.owners) {
    wire::OwnerShare* put = out->add_owners();
    Put(share.owner, put->mutable_owner());
    put->set_weight(share.weight);
  }
}

void Put(const Plan& in, wire::Plan* out) {
  out->set_round(in.round.value);
  out->set_epoch(in.epoch.value);
  for (const Assignment& assignment : in.assignments) {
    wire::Assignment* put = out->add_assignments();
    Put(assignment.member, put->mutable_member());
    PutAll(assignment.units, put->mutable_units());
  }
  Put(in.owners, out->mutable_owners());
  PutAll(in.members, out->mutable_members());
  out->set_relaxed(in.relaxed);
  out->set_carries(in.carries);
  out->set_local_rate(in.local_rate);
  out->set_attempt(in.attempt.value);
}

void Put(const CommittedPart& in, wire::CommittedPart* out) {
  Put(in.member, out->mutable_member());
  out->set_part(in.part.value);
  out->set_weight(in.weight);
  out->set_samples(in.samples);
}

void Put(const StateChunk& in, wire::StateChunk* out) {
  out->set_round(in.round.value);
  out->set_tensor(in.tensor);
  out->set_offset(in.offset);
  out->set_last(in.last);
  out->set_data(in.bytes.data(), in.bytes.size());
}

SampleRange Get(const wire::SampleRange& in, Checks& checks) {
  checks.Require(in.from() <= in.to(), "a range that ends before it begins");
  return {in.from(), in.to()};
}

Unit Get(const wire::Unit& in, Checks& checks) {
  return {UnitIndex(in.index()), Get(in.range(), checks)};
}

MemberId Get(const wire::MemberId& in) {
  return {WorkerId(in.worker()), Incarnation(in.incarnation())};
}

OwnerMap Get(const wire::OwnerMap& in, Checks& checks) {
  OwnerMap out;
  out.version = in.version();
  out.owners =
      GetAll<OwnerShare>(in.owners(), kMaxMembers, checks, [&](const wire::OwnerShare& share) {
        checks.Require(share.weight() > 0, "an owner without weight");
        return OwnerShare{Get(share.owner()), share.weight()};
      });
  checks.Require(!out.owners.empty(), "no owner");
  for (std::size_t i = 1; i < out.owners.size(); ++i) {
    checks.Require(out.owners[i - 1].owner.worker < out.owners[i].owner.worker,
                   "owners out of order");
  }
  return out;
}

Plan Get(const wire::Plan& in, Checks& checks) {
  Plan out;
  out.round = RoundId(in.round());
  out.epoch = Epoch(in.epoch());
  std::size_t units = 0;
  out.assignments = GetAll<Assignment>(
      in.assignments(), kMaxMembers, checks, [&](const wire::Assignment& assignment) {
        units += static_cast<std::size_t>(assignment.units_size());
        checks.Require(units <= kMaxUnits, "too many units");
        return Assignment{Get(assignment.member()), GetUnits(assignment.units(), checks)};
      });
  for (std::size_t i = 1; i < out.assignments.size(); ++i) {
    checks.Require(out.assignments[i - 1].member.worker < out.assignments[i].member.worker,
                   "assignments out of order");
  }
  out.owners = Get(in.owners(), checks);
  out.members = GetMembers(in.members(), checks);
  out.relaxed = in.relaxed();
  out.carries = in.carries();
  checks.Require(out.relaxed || !out.carries, "work carried into a synchronous round");
  out.local_rate = in.local_rate();
  out.attempt = Attempt(in.attempt());
  checks.Require(std::isfinite(in.local_rate()), "a rate that is no number");
  return out;
}

CommittedPart Get(const wire::CommittedPart& in, Checks& checks) {
  checks.Require(std::isfinite(in.weight()), "a weight that is no number");
  return {Get(in.member()), GetPart(in.part(), checks), in.weight(), in.samples()};
}

StateChunk Get(const wire::StateChunk& in, Checks& checks) {
  StateChunk out;
  out.round = RoundId(in.round());
  out.tensor = in.tensor();
  out.offset = in.offset();
  out.last = in.last();
  checks.Require(in.data().size() <= kMaxChunkBytes, "too many bytes in a chunk");
  std::uint64_t end = 0;
  checks.Require(!__builtin_add_overflow(in.offset(), in.data().size(), &end),
                 "a chunk beyond all tensors");
  if (!checks.wrong().empty()) return out;
  const auto* bytes = reinterpret_cast<const std::byte*>(in.data().data());
  out.bytes.assign(bytes, bytes + in.data().size());
  return out;
}

PartIndex GetPart(std::uint32_t part, Checks& checks) {
  checks.Require(part < static_cast<std::uint32_t>(kMaxParts), "a part that cannot be");
  return PartIndex(static_cast<std::uint8_t>(part));
}

std::string GetSlowdowns(const std::string& in, Checks& checks) {
  checks.Require(in.size() <= kMaxSlowdownBytes, "slow-downs that are too long");
  return checks.wrong().empty() ? in : std::string();
}

std::string GetText(const std::string& in, Checks& checks) {
  checks.Require(in.size() <= kMaxTextBytes, "a text that is too long");
  return checks.wrong().empty() ? in : std::string();
}

std::string GetAddress(const std::string& in, Checks& checks) {
  checks.Require(in.size() <= kMaxAddressBytes, "an address that is too long");
  return checks.wrong().empty() ? in : std::string();
}

std::vector<Unit> GetUnits(const google::protobuf::RepeatedPtrField<wire::Unit>& in,
                           Checks& checks) {
  return GetAll<Unit>(in, kMaxUnits, checks,
                      [&](const wire::Unit& unit) { return Get(unit, checks); });
}

std::vector<MemberId> GetMembers(const google::protobuf::RepeatedPtrField<wire::MemberId>& in,
                                 Checks& checks) {
  auto out = GetAll<MemberId>(in, kMaxMembers, checks,
                              [](const wire::MemberId& member) { return Get(member); });
  for (std::size_t i = 1; i < out.size(); ++i) {
    checks.Require(out[i - 1].worker < out[i].worker, "members out of order");
  }
  return out;
}

}  // namespace lockstep::transport::control
