#include "worker/layout/layout.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/check.h"

namespace lockstep::worker {

namespace {

std::uint64_t GrainsIn(std::uint64_t count) { return (count + kGrain - 1) / kGrain; }

// `bucket` grows by `block` where the two are neighbours.
bool Join(FloatRange& bucket, FloatRange block) {
  if (block.end() == bucket.first) {
    bucket = {block.first, bucket.count + block.count};
    return true;
  }
  if (bucket.end() == block.first) {
    bucket.count += block.count;
    return true;
  }
  return false;
}

// A parameter in no block would never be reduced, and one in two would be reduced twice.
void CheckCover(const std::vector<FloatRange>& blocks) {
  FloatSet cover;
  std::uint64_t total = 0;
  for (const FloatRange& block : blocks) {
    cover.Merge(block);
    total += block.count;
  }
  LOCKSTEP_CHECK(total > 0 && cover.Covers({0, total}),
                 "the blocks of the model do not cover its {} parameters", total);
}

// The end of a piece that begins at `at`: at most `most` numbers on, and not within a matrix that
// is shorter than that.
std::uint64_t EndOfPiece(std::uint64_t at, std::uint64_t end, std::uint64_t most,
                         const std::vector<Matrix>& matrices) {
  if (end - at <= most) return end;
  const auto behind = std::ranges::lower_bound(matrices, at + most, {}, &Matrix::first);
  if (behind == matrices.begin()) return at + most;
  const Matrix& matrix = *std::prev(behind);
  return matrix.first > at && matrix.end() > at + most ? matrix.first : at + most;
}

// Like CutPieces, but not within matrices that are exchanged as factors, or, if they are long,
// between their rows.
std::vector<FloatRange> CutBlock(const FloatRange& block, std::uint64_t most,
                                 const Compression& compression) {
  if (compression.rank == 0) return CutPieces(block, most * sizeof(float));
  std::vector<FloatRange> pieces;
  std::uint64_t at = block.first;
  const auto cut_to = [&](std::uint64_t end) {
    while (at < end) {
      pieces.push_back(FloatRange::Between(at, EndOfPiece(at, end, most, compression.matrices)));
      at = pieces.back().end();
    }
  };
  for (const Matrix& matrix : compression.matrices) {
    const bool within = matrix.first >= at && matrix.end() <= block.end();
    if (!within || matrix.end() - matrix.first <= most) continue;
    const std::uint64_t rows = RowsOfBucket(matrix, most, compression.rank);
    if (!IsFactored(rows, matrix.columns, compression.rank)) continue;
    cut_to(matrix.first);
    while (at < matrix.end()) {
      pieces.push_back({at, std::min(rows * matrix.columns, matrix.end() - at)});
      at = pieces.back().end();
    }
  }
  cut_to(block.end());
  return pieces;
}

}  // namespace

// Buckets have the order in which the backward pass finishes the blocks, so that "the first n
// buckets are final" is one number.
Layout::Layout(const std::vector<FloatRange>& blocks, std::uint64_t bucket_bytes,
               std::uint64_t number_bytes, Copies copies, const Compression& compression)
    : number_bytes_(number_bytes),
      whole_(copies == Copies::kWhole),
      kept_(compression.kept),
      rank_(compression.rank) {
  LOCKSTEP_CHECK(number_bytes == 4 || number_bytes == 2, "numbers of {} bytes", number_bytes);
  CheckCover(blocks);
  const std::uint64_t most = std::max<std::uint64_t>(kGrain, bucket_bytes / sizeof(float));
  for (const FloatRange& block : blocks) {
    parameter_count_ += block.count;
    if (block.count == 0) continue;
    if (!buckets_.empty() && buckets_.back().count + block.count <= most &&
        Join(buckets_.back(), block)) {
      continue;
    }
    std::ranges::copy(CutBlock(block, most, compression), std::back_inserter(buckets_));
  }
  std::uint64_t grains = 0;
  for (std::uint32_t b = 0; b < bucket_count(); ++b) by_offset_.push_back(b);
  std::ranges::sort(by_offset_, {}, [&](std::uint32_t b) { return buckets_[b].first; });
  for (const FloatRange& b : buckets_) {
    grain_start_.push_back(grains);
    grains += GrainsIn(b.count);
    largest_bucket_ = std::max(largest_bucket_, b.count);
  }
  grain_start_.push_back(grains);
  LOCKSTEP_CHECK(!buckets_.empty() && largest_bucket_ > 0, "a model without a bucket");
  LOCKSTEP_CHECK(kept_ <= kGrain, "{} numbers are kept of {}", kept_, kGrain);
  LOCKSTEP_CHECK(kept_ == 0 || rank_ == 0, "{} numbers of each grain, and factors of rank {}",
                 kept_, rank_);
  if (rank_ > 0) LayOutFactors(compression.matrices);
  norm_offset_ = GrainsIn(rank_ > 0 ? contribution_numbers() : parameter_count_) * kGrain;
}

void Layout::LayOutFactors(const std::vector<Matrix>& matrices) {
  std::uint64_t start = 0;
  for (const FloatRange& bucket : buckets_) {
    stretches_.push_back(CutIntoStretches(bucket.first, bucket.count, matrices, rank_));
    const std::uint64_t grains = GrainsIn(bucket.count);
    factor_numbers_.push_back((NumbersOf(stretches_.back(), rank_) + grains - 1) / grains);
    factors_start_.push_back(start);
    start += grains * factor_numbers_.back();
  }
  factors_start_.push_back(start);
}

std::vector<FloatRange> Layout::FactorsWithin(const FloatRange& range) const {
  std::vector<FloatRange> factors;
  for (const std::uint32_t b : by_offset_) {
    if (rank_ == 0 || buckets_[b].end() <= range.first || buckets_[b].first >= range.end())
      continue;
    for (const Stretch& stretch : stretches_[b]) {
      const std::uint64_t end = stretch.first + (stretch.rows + stretch.columns) * rank_;
      const std::uint64_t from = std::max(range.first, stretch.first);
      const std::uint64_t to = std::min(range.end(), end);
      if (!stretch.dense() && from < to) factors.push_back(FloatRange::Between(from, to));
    }
  }
  return factors;
}

// Slices begin at a grain, so no two owners share one. So one owner alone computes each sum of
// squares, in the same order for any owner (I1).
FloatRange Layout::NormsOf(const Slice& slice) const {
  return {norm_offset_ + numbers_per_norm() * GrainAt(slice.range.first),
          numbers_per_norm() * GrainsIn(slice.range.count)};
}

std::uint32_t Layout::BucketOf(std::uint64_t parameter) const {
  const auto behind = std::ranges::upper_bound(by_offset_, parameter, {},
                                               [&](std::uint32_t b) { return buckets_[b].first; });
  LOCKSTEP_CHECK(behind != by_offset_.begin(), "parameter {} is in no bucket", parameter);
  return *std::prev(behind);
}

std::uint64_t Layout::GrainAt(std::uint64_t parameter) const {
  const std::uint32_t bucket = BucketOf(parameter);
  const std::uint64_t offset = parameter - buckets_[bucket].first;
  LOCKSTEP_CHECK(offset % kGrain == 0, "I1: a slice of bucket {} begins within a grain", bucket);
  return grain_start_[bucket] + offset / kGrain;
}

// Where the sums as a whole, in any division among owners, are not shorter in this form, they have
// the other one.
std::uint32_t Layout::SumEntries(std::size_t contributions) const {
  if (kept_ == 0) return 0;
  const std::uint64_t entries = std::min(kept_ * std::uint64_t{contributions}, kGrain);
  const bool shorter =
      grain_count() * NumbersOfGrain(static_cast<std::uint32_t>(entries)) < parameter_count_;
  return shorter ? static_cast<std::uint32_t>(entries) : 0;
}

FloatRange Layout::InSum(const FloatRange& slice, std::uint32_t entries) const {
  if (rank_ > 0 && slice.count > 0) {
    const std::uint32_t bucket = BucketOf(slice.first);
    const std::uint64_t grain = GrainAt(slice.first) - grain_start_[bucket];
    const std::uint64_t numbers = factor_numbers_[bucket];
    return {factors_start_[bucket] + grain * numbers, GrainsIn(slice.count) * numbers};
  }
  if (entries == 0 || slice.count == 0) return slice;
  const std::uint64_t numbers = NumbersOfGrain(entries);
  return {numbers * GrainAt(slice.first), numbers * GrainsIn(slice.count)};
}

// Grains are assigned by weight: owner i gets those between the sums of the weights before it and
// up to it. So the shards of all owners cover each bucket exactly, with any rounding.
std::vector<Slice> Layout::Cut(const std::vector<std::uint32_t>& weights, std::size_t self) const {
  const std::size_t n = weights.size();
  std::uint64_t total = 0;
  for (const std::uint32_t weight : weights) total += weight;
  std::vector<Slice> shard;
  for (std::uint32_t b = 0; b < bucket_count(); ++b) {
    // The order of the owners rotates from bucket to bucket, so that the gains of rounding (an
    // owner of a bucket with few grains) are spread.
    const std::size_t turn = b % n;
    std::uint64_t before = 0;
    for (std::size_t i = turn; i % n != self; ++i) before += weights[i % n];
    const std::uint64_t after = before + weights[self];
    const std::uint64_t grains = GrainsIn(buckets_[b].count);
    const std::uint64_t from = grains * before / total;
    const std::uint64_t to = grains * after / total;
    if (from == to) continue;
    const std::uint64_t end = std::min(buckets_[b].count, to * kGrain);
    LOCKSTEP_CHECK(from < to && to <= grains && from * kGrain < end,
                   "I1: grains [{}, {}) of the {} of bucket {}", from, to, grains, b);
    shard.push_back({b, {buckets_[b].first + from * kGrain, end - from * kGrain}});
  }
  return shard;
}

std::vector<Slice> Layout::Shard(const OwnerMap& map, const MemberId& owner) const {
  std::vector<Slice> shard;
  if (!map.holders.empty()) {
    const auto of = static_cast<std::uint32_t>(map.holders.size());
    for (std::uint32_t s = 0; s < of; ++s) {
      if (map.holders[s].members.front() != owner) continue;
      const std::vector<Slice> slices = EqualShard(s, of);
      shard.insert(shard.end(), slices.begin(), slices.end());
    }
    std::ranges::sort(shard, {}, [](const Slice& s) { return std::pair(s.bucket, s.range.first); });
    return shard;
  }
  const auto self = std::ranges::find(map.owners, owner, &OwnerShare::owner);
  if (self == map.owners.end()) return shard;
  std::vector<std::uint32_t> weights;
  for (const OwnerShare& share : map.owners) weights.push_back(share.weight);
  LOCKSTEP_CHECK(std::ranges::any_of(weights, [](std::uint32_t weight) { return weight > 0; }),
                 "I1: the owners of map {} have no weight", map.version);
  return Cut(weights, static_cast<std::size_t>(self - map.owners.begin()));
}

std::vector<Slice> Layout::EqualShard(std::uint32_t shard, std::uint32_t of) const {
  return Cut(std::vector<std::uint32_t>(of, 1), shard);
}

std::vector<std::uint32_t> HeldBy(const OwnerMap& map, const MemberId& member) {
  std::vector<std::uint32_t> held;
  for (std::uint32_t s = 0; s < map.holders.size(); ++s) {
    const std::vector<MemberId>& members = map.holders[s].members;
    if (std::ranges::find(members, member) != members.end()) held.push_back(s);
  }
  return held;
}

// The pieces are equal but for a remainder, so that the window of fetches is a bound in bytes (I7).
std::vector<FloatRange> CutPieces(FloatRange range, std::uint64_t piece_bytes,
                                  std::uint64_t number_bytes) {
  const std::uint64_t most = std::max<std::uint64_t>(1, piece_bytes / number_bytes);
  std::vector<FloatRange> pieces;
  for (std::uint64_t at = range.first; at < range.end(); at += most) {
    pieces.push_back({at, std::min(most, range.end() - at)});
  }
  return pieces;
}

}  // namespace lockstep::worker
