// The cut of the flat parameter vector: buckets in the order the backward pass finishes them, each
// bucket split among the owners, slices cut into pieces. It is also cut into copies, in which a
// member that catches up gets the state. All are pure functions of their inputs: every member
// computes the same cut by itself.
#pragma once

#include <cstdint>
#include <vector>

#include "base/interval_set.h"
#include "base/messages.h"
#include "base/sparse_block.h"
#include "worker/layout/factored.h"

namespace lockstep::worker {

// Slices begin at multiples of the grain from their bucket's start. Sums of squares for clipping
// are taken for each grain, so that they do not depend on the owners.
inline constexpr std::uint64_t kGrain = 1024;
static_assert(kGrain == kSparseBlock);

// [first, first + count) of the flat parameter vector, or of a buffer. It counts floats, which in
// contributions and sums have the type that the job exchanges (Layout::number_bytes).
struct FloatRange {
  std::uint64_t first = 0;
  std::uint64_t count = 0;
  std::uint64_t begin() const { return first; }
  std::uint64_t end() const { return first + count; }
  static FloatRange Between(std::uint64_t from, std::uint64_t to) { return {from, to - from}; }
  auto operator<=>(const FloatRange&) const = default;
};
using FloatSet = RangeSet<FloatRange>;

struct Slice {
  std::uint32_t bucket = 0;
  FloatRange range;
  bool operator==(const Slice&) const = default;
};

// How less than all numbers of a gradient is exchanged; by default all are.
struct Compression {
  // A contribution has so many numbers of each grain, in the sparse form (base/sparse_block.h).
  std::uint32_t kept = 0;
  // These matrices, by offset, are exchanged as a factor of this rank where they are large enough.
  std::uint32_t rank = 0;
  std::vector<Matrix> matrices = {};
};

// An example: blocks of 3000 and 2000 floats, cut at buckets of 4096 floats at most, are two
// buckets, [2000, 5000) and [0, 2000). The backward pass finishes the last block of a model first.
// Two owners of equal weight share the first one by grains of 1024 floats, [2000, 3024) and [3024,
// 5000). So the vector is cut twice. The cut by buckets is for time: early final parts can move
// early. The cut within each bucket by owner is for balance: every owner has a share of each
// bucket, and works all the time.
class Layout {
 public:
  // The part of the state that is copied together, and stands at one round. It is a bucket, where
  // an update can be applied to single buckets. It is all of the state, where the program makes the
  // update itself, for the whole.
  enum class Copies : std::uint8_t { kBuckets, kWhole };

  // `blocks`: the parameter blocks in the order in which the backward pass finishes them; together
  // they are [0, parameter_count). Neighbours are joined into buckets of about `bucket_bytes` of
  // FP32; a longer block is cut. Matrices that are exchanged as factors are cut between their rows,
  // into longer buckets where that makes the factors shorter. `number_bytes`: the size of a number
  // in a contribution or a sum, 4 or 2.
  Layout(const std::vector<FloatRange>& blocks, std::uint64_t bucket_bytes,
         std::uint64_t number_bytes = sizeof(float), Copies copies = Copies::kBuckets,
         const Compression& compression = {});

  std::uint64_t number_bytes() const { return number_bytes_; }

  std::uint64_t parameter_count() const { return parameter_count_; }
  std::uint32_t bucket_count() const { return static_cast<std::uint32_t>(buckets_.size()); }
  const FloatRange& bucket(std::uint32_t b) const { return buckets_[b]; }
  bool whole() const { return whole_; }
  std::uint32_t copy_count() const { return whole_ ? 1 : bucket_count(); }
  FloatRange copy(std::uint32_t c) const {
    return whole_ ? FloatRange{0, parameter_count_} : buckets_[c];
  }
  std::uint32_t copy_of(std::uint32_t bucket) const { return whole_ ? 0 : bucket; }
  std::uint64_t largest_copy() const { return whole_ ? parameter_count_ : largest_bucket_; }

  // With `kept`, contributions are grain after grain in the order of the buckets, each grain of the
  // same length. Sums are too. A grain of theirs has as many entries as their contributions can
  // have in it together, unless all of its numbers take no more.
  std::uint32_t kept() const { return kept_; }
  // Where matrices are exchanged as factors, contributions and sums have bucket after bucket. So
  // that each slice has a place, a bucket's numbers are cut into as many equal lengths as it has
  // grains; the last one is filled up with zeros.
  //
  // A tensor of the optimizer's state keeps the last factors of both kinds, at the beginning of
  // their stretch: first that of the rows. The rest of that tensor is zero.
  std::uint32_t rank() const { return rank_; }
  const std::vector<Stretch>& stretches(std::uint32_t bucket) const { return stretches_[bucket]; }
  // The parts of that tensor within `range` that are not zero, by offset.
  std::vector<FloatRange> FactorsWithin(const FloatRange& range) const;
  // The parts of a state tensor that have to be copied, of `tensors` after the parameters, within
  // `range`. It is the whole range or, for the factors' tensor, the factors.
  std::vector<FloatRange> InStateTensor(std::uint32_t tensor, std::uint32_t tensors,
                                        const FloatRange& range) const {
    if (rank_ > 0 && tensor > 0 && tensor == tensors) return FactorsWithin(range);
    return {range};
  }
  // Contributions have only some numbers of a gradient.
  bool compressed() const { return kept_ > 0 || rank_ > 0; }
  // The bucket that this parameter is in.
  std::uint32_t BucketOf(std::uint64_t parameter) const;
  // For sums where a grain is not in the sparse form: how many numbers each grain has; the last one
  // of a bucket may have fewer.
  std::uint64_t SumNumbersOfGrain(std::uint32_t bucket) const {
    return rank_ == 0 ? kGrain : factor_numbers_[bucket];
  }
  // The entries of a grain in the sums of so many contributions; 0: all numbers, at the parameters'
  // offsets. It is a function of the commit alone, as the sums are (I1).
  std::uint32_t SumEntries(std::size_t contributions) const;
  // The size of a contribution's buffer.
  std::uint64_t contribution_numbers() const {
    if (rank_ > 0) return factors_start_.back();
    return kept_ == 0 ? parameter_count_ : grain_count() * NumbersOfGrain(kept_);
  }
  // The place of a slice, or a bucket, in a contribution, and in sums with so many entries for a
  // grain. (Sums of factors are as long as contributions, and have no entries.)
  FloatRange InContribution(const FloatRange& slice) const { return InSum(slice, kept_); }
  FloatRange InSum(const FloatRange& slice, std::uint32_t entries) const;
  std::uint64_t NumbersOfGrain(std::uint32_t entries) const {
    return SparseBlockNumbers(entries, number_bytes_);
  }

  // A sum buffer holds the sum of the gradients, with at most all numbers at the parameters'
  // offsets. After their end it holds one double for each grain: the sum of squares of the grain's
  // sums. Offsets there count the sums' numbers, as many for each double as fill its eight bytes.
  std::uint64_t norm_offset() const { return norm_offset_; }
  std::uint64_t grain_count() const { return grain_start_.back(); }
  std::uint64_t numbers_per_norm() const { return sizeof(double) / number_bytes_; }
  std::uint64_t sum_floats() const { return norm_offset_ + numbers_per_norm() * grain_count(); }
  // The place of the doubles of this slice's grains.
  FloatRange NormsOf(const Slice& slice) const;

  // The shard of `owner`, by bucket and offset; empty when it owns nothing or is not in the map.
  // There is at most one slice a bucket where the map has no holders, else one for each shard that
  // the owner has.
  std::vector<Slice> Shard(const OwnerMap& map, const MemberId& owner) const;
  // A shard of a map with holders: one of `of` equal ones.
  std::vector<Slice> EqualShard(std::uint32_t shard, std::uint32_t of) const;

 private:
  std::vector<Slice> Cut(const std::vector<std::uint32_t>& weights, std::size_t self) const;
  void LayOutFactors(const std::vector<Matrix>& matrices);
  // The grain that begins at this parameter, counted in the order of the buckets.
  std::uint64_t GrainAt(std::uint64_t parameter) const;

  std::vector<FloatRange> buckets_;
  std::vector<std::uint32_t> by_offset_;    // the buckets
  std::vector<std::uint64_t> grain_start_;  // by bucket, and the total at the end
  std::uint64_t number_bytes_;
  bool whole_;
  std::uint32_t kept_;
  std::uint32_t rank_;
  // With a rank, by bucket: its stretches, how many numbers each of its grains has, and the place
  // of the first grain's numbers, with the total at the end.
  std::vector<std::vector<Stretch>> stretches_;
  std::vector<std::uint64_t> factor_numbers_;
  std::vector<std::uint64_t> factors_start_;
  std::uint64_t parameter_count_ = 0;
  std::uint64_t largest_bucket_ = 0;
  std::uint64_t norm_offset_ = 0;
};

// The shards of a map with holders that this member holds, ascending.
std::vector<std::uint32_t> HeldBy(const OwnerMap& map, const MemberId& member);

// Cuts a range into pieces of at most `piece_bytes`, where a number takes `number_bytes`.
std::vector<FloatRange> CutPieces(FloatRange range, std::uint64_t piece_bytes,
                                  std::uint64_t number_bytes = sizeof(float));

}  // namespace lockstep::worker
