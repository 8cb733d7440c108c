// How the flat parameter vector is cut: buckets in the order the backward pass finishes them, each
// bucket split among the owners, slices cut into pieces; and into copies, in which the state goes
// to who catches up. Pure functions of their inputs: every member comes to the same cut by itself.
#pragma once

#include <cstdint>
#include <vector>

#include "base/interval_set.h"
#include "base/messages.h"
#include "base/sparse_block.h"

namespace lockstep::worker {

// Slices begin at multiples of the grain from their bucket's start; sums of squares for clipping
// are taken for each grain, so that they do not depend on who owns what.
inline constexpr std::uint64_t kGrain = 1024;
static_assert(kGrain == kSparseBlock);

// [first, first + count) of the flat parameter vector, or of a buffer; in floats, which in
// contributions and sums are of the type that the job exchanges (Layout::number_bytes).
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

// An example: blocks of 3000 and 2000 floats, cut at buckets of 4096 floats at most, are two
// buckets, [2000, 5000) and [0, 2000), because the backward pass finishes the last block of a model
// first. Two owners of equal weight share the first one by grains of 1024 floats, [2000, 3024) and
// [3024, 5000). So the vector is cut twice: by buckets, for time (what is final early can move
// early), and within each bucket by owner, for balance (every owner has a share of each bucket, and
// works all the time).
class Layout {
 public:
  // What of the state is copied together, and stands at one round: a bucket, where an update can be
  // applied to some buckets and not to others; all of it, where the program makes the update
  // itself, which is of the whole.
  enum class Copies : std::uint8_t { kBuckets, kWhole };

  // `blocks`: the parameter blocks in the order in which the backward pass finishes them; together
  // they are [0, parameter_count). Neighbours are joined into buckets of about `bucket_bytes` of
  // FP32; a longer block is cut. `number_bytes`: of a number in a contribution or a sum, 4 or 2.
  // `kept`: how many numbers of each grain a contribution has, in the sparse form
  // (base/sparse_block.h); 0: all of them.
  Layout(const std::vector<FloatRange>& blocks, std::uint64_t bucket_bytes,
         std::uint64_t number_bytes = sizeof(float), Copies copies = Copies::kBuckets,
         std::uint32_t kept = 0);

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

  // Where numbers are kept by the grain, contributions are grain after grain in the order of the
  // buckets, each as long as any other. Sums are too, with as many entries for a grain as their
  // contributions can have in it, unless all of its numbers take no more.
  std::uint32_t kept() const { return kept_; }
  // Of a grain of the sums of so many contributions; 0: all numbers, at the parameters' offsets. A
  // function of the commit alone, as the sums themselves (I1).
  std::uint32_t SumEntries(std::size_t contributions) const;
  // What a buffer of a contribution holds.
  std::uint64_t contribution_numbers() const {
    return kept_ == 0 ? parameter_count_ : grain_count() * NumbersOfGrain(kept_);
  }
  // Where a slice, or a bucket, lies in a contribution, and in sums with so many entries for a
  // grain.
  FloatRange InContribution(const FloatRange& slice) const { return InSum(slice, kept_); }
  FloatRange InSum(const FloatRange& slice, std::uint32_t entries) const;
  std::uint64_t NumbersOfGrain(std::uint32_t entries) const {
    return SparseBlockNumbers(entries, number_bytes_);
  }

  // A sum buffer holds the sum of the gradients, at most all numbers at the parameters' offsets,
  // and, behind where those end, one double for each grain: the sum of squares of the grain's sums.
  // Offsets there are in the sums' numbers, as many for each double as take its eight bytes.
  std::uint64_t norm_offset() const { return norm_offset_; }
  std::uint64_t grain_count() const { return grain_start_.back(); }
  std::uint64_t numbers_per_norm() const { return sizeof(double) / number_bytes_; }
  std::uint64_t sum_floats() const { return norm_offset_ + numbers_per_norm() * grain_count(); }
  // Where the doubles of this slice's grains lie.
  FloatRange NormsOf(const Slice& slice) const;

  // The shard of `owner`, by bucket and offset; empty when it owns nothing or is not in the map. At
  // most one slice a bucket where the map has no holders, else one for each shard that it owns.
  std::vector<Slice> Shard(const OwnerMap& map, const MemberId& owner) const;
  // Of the shards of a map with holders: one of `of` that are equal.
  std::vector<Slice> EqualShard(std::uint32_t shard, std::uint32_t of) const;

 private:
  std::vector<Slice> Cut(const std::vector<std::uint32_t>& weights, std::size_t self) const;
  // Counted in the order of the buckets; of the grain that begins at this parameter.
  std::uint64_t GrainAt(std::uint64_t parameter) const;

  std::vector<FloatRange> buckets_;
  std::vector<std::uint32_t> by_offset_;    // the buckets
  std::vector<std::uint64_t> grain_start_;  // by bucket, and the total at the end
  std::uint64_t number_bytes_;
  bool whole_;
  std::uint32_t kept_;
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
