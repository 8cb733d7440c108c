// The arithmetic of the exchange on host memory: sums whose bits depend only on the values and
// their order.
//
// They are the same on every machine. Each operation is one correctly rounded IEEE operation in an
// order that is part of the contract, without contraction into fused multiply-adds, for any
// instruction set. So the cut of a range among owners, threads or calls does not matter, nor does
// its alignment. (A NaN stays a NaN, but not necessarily the same one. The floating-point
// environment must be the default one: no flushing of denormals.)
#pragma once

#include <cstddef>
#include <span>

namespace lockstep::worker {

// One addend: the call gives the length of `data`.
struct Input {
  const float* data = nullptr;
  float weight = 1.0f;
};

// out[i] = (..((w0 * x0[i]) + w1 * x1[i]) + ..), each product and each sum rounded; zeros for no
// inputs. It takes one pass over all inputs. `out` overlaps no input. Inputs may be memory that
// another process rewrites meanwhile (a peer's arena): the result is then arbitrary, and must be
// thrown away. `large`: these belong to more sums than fit into a core's caches until they are
// read, so they are written past the caches. A fence follows, so later writes order them like any
// other.
//
// False: a sum is infinite or not a number, as each sum with such a term is.
bool WeightedSum(std::span<const Input> inputs, float* out, std::size_t n, bool large);
// For complete sums: they are large by their own size.
bool WeightedSum(std::span<const Input> inputs, float* out, std::size_t n);

inline std::size_t Grains(std::size_t n, std::size_t grain) { return (n + grain - 1) / grain; }

// out[g] = the sum of squares of data[g * grain .. min(n, (g + 1) * grain)), in double precision,
// for each of the Grains(n, grain). Within a grain element i is added to lane i % 16, in order;
// then lanes j and j + 8 are added, j and j + 4, j + 2, j + 1. Add the grains by index: then the
// norm of a gradient does not depend on the owners, as long as slices begin on multiples of the
// grain.
void SumOfSquaresByGrain(const float* data, std::size_t n, std::size_t grain, double* out);

// Copies n floats, bit for bit, past the caches: for more than fits into them until it is read. The
// ranges do not overlap. `data` may be memory that another process rewrites meanwhile. Later writes
// order these like any other.
void CopyPastCaches(const float* data, float* out, std::size_t n);

// True if none of the values is infinite or not a number.
bool AllFinite(const float* data, std::size_t n);

}  // namespace lockstep::worker
