#include "base/digest.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <charconv>
#include <cstring>

#include "base/random.h"

namespace lockstep {
namespace {

// The digest of n values. Two floats make a word, the first in its low half; a missing last one
// counts as zero bits. Word i goes into lane i % 8:
//   lane = rotl(lane + word * kSpread, 31) * kMix    mod 2^64
// which is a bijection of the lane for each word and of the word for each lane. To hide a changed
// earlier word, many scattered bits of a later one would have to change; the first product causes
// that. Lane j starts as Mix64(j). At the end, with Mix64 of base/random.h:
//   low  = Mix64(... Mix64(Mix64(n) ^ lane 0) ... ^ lane 7)
//   high = Mix64(... Mix64(Mix64(~n) ^ lane 7) ... ^ lane 0)
constexpr std::uint64_t kSpread = 0x9E3779B97F4A7C15ull;
constexpr std::uint64_t kMix = 0xD1B54A32D192ED03ull;

std::uint64_t WordAt(const std::byte* bytes) {
  static_assert(std::endian::native == std::endian::little);
  std::uint64_t word;
  std::memcpy(&word, bytes, sizeof word);
  return word;
}

std::uint64_t Step(std::uint64_t lane, std::uint64_t word) {
  return std::rotl(lane + word * kSpread, 31) * kMix;
}

}  // namespace

DigestStream::DigestStream() {
  for (std::size_t j = 0; j < kLanes; ++j) lanes_[j] = Mix64(j);
}

void DigestStream::AddBlock(const std::byte* block) {
  for (std::size_t j = 0; j < kLanes; ++j) {
    lanes_[j] = Step(lanes_[j], WordAt(block + j * sizeof(std::uint64_t)));
  }
}

void DigestStream::Update(std::span<const std::byte> bytes) {
  bytes_ += bytes.size();
  if (in_block_ > 0) {
    const std::size_t n = std::min(bytes.size(), kBlockBytes - in_block_);
    std::copy_n(bytes.begin(), n, block_.begin() + static_cast<std::ptrdiff_t>(in_block_));
    in_block_ += n;
    bytes = bytes.subspan(n);
    if (in_block_ < kBlockBytes) return;
    AddBlock(block_.data());
    in_block_ = 0;
  }
  // Works in a copy: for the compiler, `bytes` might point to the lanes themselves.
  std::array<std::uint64_t, kLanes> lanes = lanes_;
  for (; bytes.size() >= kBlockBytes; bytes = bytes.subspan(kBlockBytes)) {
    for (std::size_t j = 0; j < kLanes; ++j) {
      lanes[j] = Step(lanes[j], WordAt(bytes.data() + j * sizeof(std::uint64_t)));
    }
  }
  lanes_ = lanes;
  std::copy(bytes.begin(), bytes.end(), block_.begin());
  in_block_ = bytes.size();
}

Digest128 DigestStream::Digest() const {
  std::array<std::uint64_t, kLanes> lanes = lanes_;
  for (std::size_t j = 0; j * sizeof(std::uint64_t) < in_block_; ++j) {
    std::array<std::byte, sizeof(std::uint64_t)> word{};
    const std::size_t from = j * word.size();
    std::memcpy(word.data(), block_.data() + from, std::min(word.size(), in_block_ - from));
    lanes[j] = Step(lanes[j], WordAt(word.data()));
  }
  const std::uint64_t n = (bytes_ + sizeof(float) - 1) / sizeof(float);
  Digest128 digest{Mix64(n), Mix64(~n)};
  for (std::size_t j = 0; j < kLanes; ++j) {
    digest.low = Mix64(digest.low ^ lanes[j]);
    digest.high = Mix64(digest.high ^ lanes[kLanes - 1 - j]);
  }
  return digest;
}

Digest128 DigestOf(std::span<const float> values) {
  DigestStream stream;
  stream.Update(std::as_bytes(values));
  return stream.Digest();
}

std::string ToString(const Digest128& digest) {
  return fmt::format("{:016x}{:016x}", digest.high, digest.low);
}

std::optional<Digest128> DigestFromString(std::string_view text) {
  const auto read = [](std::string_view digits, std::uint64_t* value) {
    const auto [end, error] =
        std::from_chars(digits.data(), digits.data() + digits.size(), *value, 16);
    return error == std::errc() && end == digits.data() + digits.size();
  };
  Digest128 digest;
  if (text.size() != 32 || !read(text.substr(0, 16), &digest.high) ||
      !read(text.substr(16), &digest.low)) {
    return std::nullopt;
  }
  return digest;
}

}  // namespace lockstep
