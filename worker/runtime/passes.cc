#include "worker/runtime/passes.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <vector>

#include "base/digest.h"

namespace lockstep::worker {
namespace {

// As much as is brought to the host at a time.
constexpr std::uint64_t kDigestFloats = 1u << 20;
// As much as a thread does of an operation at a time, beside which it costs nothing to take the
// next one.
constexpr std::uint64_t kPieceBytes = 1u << 20;
static_assert(kPieceBytes / sizeof(float) % kGrain == 0);

}  // namespace

std::vector<FloatRange> RangesOf(const std::vector<action::SourceRange>& from) {
  std::vector<FloatRange> ranges;
  for (const action::SourceRange& one : from) ranges.push_back(one.range);
  return ranges;
}

std::vector<Piece> Passes::Pieces(const std::vector<FloatRange>& ranges) const {
  std::vector<Piece> pieces;
  for (std::size_t i = 0; i < ranges.size(); ++i) {
    if (!memory_.on_host()) {
      pieces.push_back({i, ranges[i]});
      continue;
    }
    for (const FloatRange& range : CutPieces(ranges[i], kPieceBytes)) pieces.push_back({i, range});
  }
  return pieces;
}

bool Passes::Large(const std::vector<Piece>& pieces) {
  std::uint64_t floats = 0;
  for (const Piece& piece : pieces) floats += piece.range.count;
  return floats * sizeof(float) >= kLargeBytes;
}

void Passes::ForEach(const std::vector<Piece>& pieces,
                     const std::function<void(const Piece&)>& work) {
  ForEach(pieces, Large(pieces), work);
}

void Passes::ForEach(const std::vector<Piece>& pieces, bool large,
                     const std::function<void(const Piece&)>& work) {
  if (!memory_.on_host()) {  // in order, and it may throw
    std::ranges::for_each(pieces, std::cref(work));
    return;
  }
  if (!large) {  // others would come too late to be of use
    std::ranges::for_each(pieces, std::cref(work));
    return;
  }
  crew_.ForEach(pieces.size(), [&](std::size_t i) { work(pieces[i]); });
}

void Passes::ReadByHost(const float* data, std::uint64_t count,
                        const std::function<void(std::span<const float>)>& read) {
  if (memory_.on_host()) return read({data, count});
  const std::lock_guard lock(scratch_mutex_);
  float* scratch = scratch_.Need(std::min(count, kDigestFloats));
  for (std::uint64_t at = 0; at < count; at += kDigestFloats) {
    const std::uint64_t n = std::min(kDigestFloats, count - at);
    memory_.ToHost(scratch, data + at, n * sizeof(float));
    read({scratch, n});
  }
}

double Passes::SumOfSquares(const std::vector<Words>& norms) {
  const std::lock_guard lock(scratch_mutex_);
  std::uint64_t words = 0;
  for (const Words& some : norms) words += some.count;
  // All in one go: to wait for each is what takes the time.
  float* scratch = memory_.on_host() ? nullptr : scratch_.Need(words);
  if (scratch != nullptr) {
    std::vector<ExchangeMemory::HostCopy> copies;
    for (float* to = scratch; const Words& some : norms) {
      copies.push_back({to, some.data, some.count * sizeof(float)});
      to += some.count;
    }
    memory_.ToHost(copies);
  }
  double total = 0;
  for (const Words& some : norms) {
    const float* values = scratch != nullptr ? scratch : some.data;
    for (std::uint64_t i = 0; i + 2 <= some.count; i += 2) {
      double value;
      std::memcpy(&value, values + i, sizeof value);
      total += value;
    }
    if (scratch != nullptr) scratch += some.count;
  }
  return total;
}

std::uint64_t Passes::DigestOfBucket(std::uint32_t bucket) {
  const FloatRange& range = layout_.bucket(bucket);
  DigestStream digest;
  ReadByHost(buffers_.parameters() + range.first, range.count,
             [&](std::span<const float> piece) { digest.Update(std::as_bytes(piece)); });
  return digest.Digest().low;
}

}  // namespace lockstep::worker
