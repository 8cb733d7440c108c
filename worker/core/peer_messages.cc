#include "worker/core/peer_messages.h"

#include <fmt/format.h>

#include <limits>
#include <type_traits>

#include "base/check.h"

namespace lockstep::worker {

namespace {

// Little endian, byte by byte, whatever the machine is.
class Writer {
 public:
  template <class T>
  void Put(T value) {
    if constexpr (std::is_same_v<T, bool>) {
      bytes_.push_back(std::byte(value ? 1 : 0));
    } else if constexpr (std::is_integral_v<T>) {
      for (std::size_t i = 0; i < sizeof(T); ++i) {
        bytes_.push_back(static_cast<std::byte>(value >> (8 * i) & 0xff));
      }
    } else {
      Put(value.value);
    }
  }
  template <class T>
  void Put(const std::optional<T>& value) {
    Put(value.has_value());
    if (value) Put(*value);
  }
  void Put(const PassedOn& passed) {
    Put(passed.shard);
    Put(passed.whole);
    Put(passed.pieces);
  }
  void Put(const std::vector<std::uint32_t>& values) {
    Put(static_cast<std::uint32_t>(values.size()));
    for (const std::uint32_t value : values) Put(value);
  }
  void Put(const InlineRanges& inlined) {
    LOCKSTEP_CHECK(inlined.ranges.size() <= kMaxInlineRanges,
                   "I7: {} ranges ride along, which no peer takes", inlined.ranges.size());
    Put(static_cast<std::uint32_t>(inlined.ranges.size()));
    for (const FloatRange& r : inlined.ranges) {
      Put(r.first);
      Put(r.count);
    }
  }
  std::vector<std::byte> Take() { return std::move(bytes_); }

 private:
  std::vector<std::byte> bytes_;
};

// Never reads past its bytes, and remembers the first failure: a message is looked at only when all
// of it was there and nothing was left (Finished).
class Reader {
 public:
  Reader(std::span<const std::byte> bytes, std::uint64_t number_bytes)
      : bytes_(bytes), number_bytes_(number_bytes) {}

  template <class T>
  void Get(T& value) {
    if constexpr (std::is_same_v<T, bool>) {
      std::uint8_t raw = 0;
      Get(raw);
      if (raw > 1) failed_ = true;
      value = raw == 1;
    } else if constexpr (std::is_integral_v<T>) {
      if (bytes_.size() < sizeof(T)) {
        failed_ = true;
        return;
      }
      std::uint64_t read = 0;
      for (std::size_t i = 0; i < sizeof(T); ++i) {
        read |= std::to_integer<std::uint64_t>(bytes_[i]) << (8 * i);
      }
      value = static_cast<T>(read);
      bytes_ = bytes_.subspan(sizeof(T));
    } else {
      Get(value.value);
    }
  }
  template <class T>
  void Get(std::optional<T>& value) {
    bool there = false;
    Get(there);
    if (there) Get(value.emplace());
  }
  void Get(PassedOn& passed) {
    Get(passed.shard);
    Get(passed.whole);
    Get(passed.pieces);
  }
  void Get(std::vector<std::uint32_t>& values) {
    std::uint32_t count = 0;
    Get(count);
    if (failed_ || bytes_.size() < std::size_t{count} * sizeof(std::uint32_t)) {
      failed_ = true;
      return;
    }
    values.resize(count);
    for (std::uint32_t& value : values) Get(value);
  }
  void Get(InlineRanges& inlined) {
    std::uint32_t count = 0;
    Get(count);
    if (failed_ || count > kMaxInlineRanges || bytes_.size() < std::size_t{count} * 16) {
      failed_ = true;
      return;
    }
    std::uint64_t floats = 0;
    inlined.ranges.resize(count);
    for (FloatRange& r : inlined.ranges) {
      Get(r.first);
      Get(r.count);
      // The floats are behind the ranges in this very message, so no honest count is larger.
      if (r.count > bytes_.size() / number_bytes_ ||
          r.first > std::numeric_limits<std::uint64_t>::max() - r.count) {
        failed_ = true;
        return;
      }
      floats += r.count;
    }
    if (floats * number_bytes_ != bytes_.size()) {
      failed_ = true;
      return;
    }
    floats_ = bytes_;
    bytes_ = {};
  }

  bool Finished() const { return !failed_ && bytes_.empty(); }
  std::span<const std::byte> floats() const { return floats_; }

 private:
  std::span<const std::byte> bytes_;
  std::span<const std::byte> floats_;
  std::uint64_t number_bytes_;
  bool failed_ = false;
};

// One list of the fields of each message serves both directions.
template <class Message, class Visitor>
void Fields(Message& m, Visitor&& v) {
  using M = std::remove_const_t<Message>;
  if constexpr (std::is_same_v<M, PartReady>) {
    v(m.round, m.part, m.tag, m.buffer, m.buckets, m.sealed, m.plan, m.inlined);
  } else if constexpr (std::is_same_v<M, SumReady>) {
    v(m.term, m.round, m.attempt, m.map_version, m.buffer, m.generation, m.whole, m.gone,
      m.stands_in_for, m.passed, m.inlined);
  } else if constexpr (std::is_same_v<M, SumWant>) {
    v(m.term, m.round, m.attempt);
  } else if constexpr (std::is_same_v<M, MapState>) {
    v(m.maps_you);
  } else if constexpr (std::is_same_v<M, StateWant>) {
    v(m.bucket, m.min_version);
  } else if constexpr (std::is_same_v<M, StateReady>) {
    v(m.bucket, m.version, m.attempt, m.tag, m.buffer, m.gone);
  } else if constexpr (std::is_same_v<M, StateTaken>) {
    v(m.tag);
  } else if constexpr (std::is_same_v<M, ParametersReady>) {
    v(m.version, m.attempt, m.buffer, m.generation, m.shards);
  } else {
    static_assert(std::is_same_v<M, Alive>);
    v();
  }
}

// The number on the wire is the place in the variant, so a new kind goes behind all others.
template <std::size_t kIndex = 0>
bool MakeAlternative(std::size_t index, PeerMessage& message) {
  if constexpr (kIndex == std::variant_size_v<PeerMessage>) {
    return false;
  } else {
    if (index == kIndex) {
      message.emplace<kIndex>();
      return true;
    }
    return MakeAlternative<kIndex + 1>(index, message);
  }
}

}  // namespace

std::uint64_t InlineRanges::Floats() const {
  std::uint64_t floats = 0;
  for (const FloatRange& r : ranges) floats += r.count;
  return floats;
}

// The floats themselves follow behind it: the shell gathers them from where they lie.
std::vector<std::byte> EncodePeerMessage(const PeerMessage& message) {
  Writer writer;
  writer.Put(static_cast<std::uint8_t>(message.index()));
  std::visit(
      [&](const auto& m) { Fields(m, [&](const auto&... field) { (writer.Put(field), ...); }); },
      message);
  return writer.Take();
}

// Whether it can be right of what it speaks of is for the part to say that it concerns.
Result<DecodedPeerMessage> DecodePeerMessage(std::span<const std::byte> bytes,
                                             std::uint64_t number_bytes) {
  Reader reader(bytes, number_bytes);
  std::uint8_t kind = 0;
  reader.Get(kind);
  Result<DecodedPeerMessage> result = DecodedPeerMessage();
  DecodedPeerMessage& decoded = *result;
  if (bytes.empty() || !MakeAlternative(kind, decoded.message)) {
    return Error{ErrorCode::kInvalid, fmt::format("peer message of unknown kind {}", kind)};
  }
  std::visit([&](auto& m) { Fields(m, [&](auto&... field) { (reader.Get(field), ...); }); },
             decoded.message);
  if (!reader.Finished()) {
    return Error{ErrorCode::kInvalid,
                 fmt::format("malformed peer message of kind {}, {} bytes", kind, bytes.size())};
  }
  decoded.floats = reader.floats();
  return result;
}

}  // namespace lockstep::worker
