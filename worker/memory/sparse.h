// Blocks of which few numbers are there (base/sparse_block.h): what a contribution keeps of a
// gradient with exchange.compression = topk, and sums of such contributions.
//
// As in reduce.h and narrow.h the bits of a result depend on the values and their order alone.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/sparse_block.h"
#include "worker/memory/narrow.h"

namespace lockstep::worker {

// Of the `n` numbers of a block (at most kSparseBlock) the `entries` of the largest magnitude go to
// `to`, in the type; of equal ones those of the lower places; all where there are no more. What is
// left of each stays in `block`: zero, or what 16 bits took from it, by rounding or because it is
// too large for the type. False: one of all n is no number.
bool TakeLargest(NumberType type, std::uint32_t entries, float* block, std::size_t n,
                 std::byte* to);

// What of `block` is not zero goes to `to`, as a sum of finite terms: one that is too large for 16
// bits becomes the largest number, which gives false. There are no more than `entries` of them;
// more are left out.
bool PutNonZero(NumberType type, std::uint32_t entries, const float* block, std::size_t n,
                std::byte* to);

// block[place] += weight * number, for each entry in turn. `block` has kSparseBlock numbers, and
// whatever `from` holds nothing else is written: it may be memory that another process rewrites
// meanwhile, or what a broken peer sent.
void AddSparse(NumberType type, std::uint32_t entries, const std::byte* from, float weight,
               float* block);

}  // namespace lockstep::worker
