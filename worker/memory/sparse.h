// Blocks with few numbers (base/sparse_block.h): contributions with exchange.compression = topk,
// and sums of them.
//
// As in reduce.h and narrow.h, the bits of a result depend on the values and their order alone.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/sparse_block.h"
#include "worker/memory/narrow.h"

namespace lockstep::worker {

// Of the `n` numbers of a block (at most kSparseBlock), the `entries` of the largest magnitude go
// to `to`, in the type. Among equal ones, those of the lower places go; where there are no more,
// all go. The rest of each stays in `block`: zero, or the part that 16 bits lost by rounding or
// because the number is too large for the type. False: one of all n is not a number.
bool TakeLargest(NumberType type, std::uint32_t entries, float* block, std::size_t n,
                 std::byte* to);

// The numbers of `block` that are not zero go to `to`, as a sum of finite terms. One that is too
// large for 16 bits becomes the largest number, which returns false. There are no more than
// `entries` of them; more are left out.
bool PutNonZero(NumberType type, std::uint32_t entries, const float* block, std::size_t n,
                std::byte* to);

// block[place] += weight * number, for each entry in turn. `block` has kSparseBlock numbers, and
// for any bytes in `from` nothing else is written. `from` may be memory that another process
// rewrites meanwhile, or the data of a broken peer.
void AddSparse(NumberType type, std::uint32_t entries, const std::byte* from, float weight,
               float* block);

}  // namespace lockstep::worker
