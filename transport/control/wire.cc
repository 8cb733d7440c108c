#include "transport/control/wire.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/wire_format_lite.h>

#include "base/ini.h"
#include "base/slowdown_spec.h"

namespace lockstep::transport::control {
namespace {

namespace protobuf = google::protobuf;
using protobuf::io::CodedInputStream;
using WireFormat = protobuf::internal::WireFormatLite;

// Nothing below it can grow to more than some megabytes.
constexpr std::size_t kSmallMessage = 1u << 16;
// More than any message of ours holds: a Ready with kMaxTensors of kMaxDimensions and their states.
constexpr std::size_t kMaxValues = 12 * kMaxUnits;
constexpr int kMaxDepth = 8;

// Counts the values of a message of this type without making any of them.
class ValueCount {
 public:
  // False: no message, or too many.
  bool Read(CodedInputStream& in, const protobuf::Descriptor& type, int depth) {
    if (depth > kMaxDepth) return false;
    while (const std::uint32_t tag = in.ReadTag()) {
      if (!Add(1)) return false;
      if (WireFormat::GetTagWireType(tag) != WireFormat::WIRETYPE_LENGTH_DELIMITED) {
        if (!WireFormat::SkipField(&in, tag)) return false;
        continue;
      }
      const auto* field = type.FindFieldByNumber(WireFormat::GetTagFieldNumber(tag));
      int size = 0;
      if (!in.ReadVarintSizeAsInt(&size) || size > in.BytesUntilLimit()) return false;
      if (field == nullptr) {
        if (!in.Skip(size)) return false;
      } else if (field->type() == protobuf::FieldDescriptor::TYPE_MESSAGE) {
        const auto limit = in.PushLimit(size);
        if (!Read(in, *field->message_type(), depth + 1)) return false;
        in.PopLimit(limit);
      } else {
        // Numbers packed into one field take a byte each at least.
        if (field->is_packable() && !Add(static_cast<std::size_t>(size))) return false;
        if (!in.Skip(size)) return false;
      }
    }
    return in.ConsumedEntireMessage();
  }

 private:
  bool Add(std::size_t values) {
    count_ += values;
    return count_ <= kMaxValues;
  }
  std::size_t count_ = 0;
};

}  // namespace

bool ParseBounded(std::span<const std::byte> bytes, protobuf::Message* into) {
  if (bytes.size() > std::size_t{1} << 30) return false;
  const auto size = static_cast<int>(bytes.size());
  if (bytes.size() > kSmallMessage) {
    CodedInputStream in(reinterpret_cast<const std::uint8_t*>(bytes.data()), size);
    in.PushLimit(size);
    if (!ValueCount().Read(in, *into->GetDescriptor(), 0)) return false;
  }
  return into->ParseFromArray(bytes.data(), size);
}

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
  PutOwners(in.owners, out->mutable_owners());
}

void Put(const Plan& in, wire::Plan* out) {
  out->set_round(in.round.value);
  out->set_epoch(in.epoch.value);
  PutAssignments(in.assignments, out);
  Put(in.owners, out->mutable_owners());
  PutMembers(in.members, out->mutable_members());
  out->set_relaxed(in.relaxed);
  out->set_carries(in.carries);
  out->set_local_rate(in.local_rate);
  out->set_attempt(in.attempt.value);
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
  return {in.version(), GetOwners(in.owners(), checks)};
}

Plan Get(const wire::Plan& in, Checks& checks) {
  Plan out;
  out.round = RoundId(in.round());
  out.epoch = Epoch(in.epoch());
  out.assignments = GetAssignments(in, checks);
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
  return checks.wrong().empty() ? Printable(in) : std::string();
}

std::string GetAddress(const std::string& in, Checks& checks) {
  checks.Require(in.size() <= kMaxAddressBytes, "an address that is too long");
  return checks.wrong().empty() ? in : std::string();
}

}  // namespace lockstep::transport::control
