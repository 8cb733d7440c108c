#include "transport/control/wire.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/wire_format_lite.h>

namespace lockstep::transport::control {
namespace {

using protobuf::io::CodedInputStream;
using WireFormat = protobuf::internal::WireFormatLite;

// No part below it can grow to more than some megabytes.
constexpr std::size_t kSmallMessage = 1u << 16;
// This is more than any message of ours holds: a Ready with kMaxTensors of kMaxDimensions and their
// states.
constexpr std::size_t kMaxValues = 12 * kMaxUnits;
constexpr int kMaxDepth = 8;

// Counts the values of a message of this type without making any of them.
class ValueCount {
 public:
  // False: the bytes are no message, or hold too many values.
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
        // Numbers packed into one field take at least a byte each.
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

}  // namespace lockstep::transport::control
