// The arithmetic of the exchange on host memory: sums whose bits depend on nothing but the values
// and their order.
//
// The same on every machine: each operation is one correctly rounded IEEE operation in an order
// that is part of the contract, without contraction into fused multiply-adds, whatever instructions
// carry it out. So it does not matter how a range is cut among owners, threads or calls, nor how it
// is aligned. (A NaN stays a NaN; which one is not promised. The floating-point environment must be
// the default one: no flushing of denormals.)
#pragma once

#include <cstddef>
#include <span>

namespace lockstep::worker {

// One addend: `data` is of the length that goes with the call.
struct Input {
  const float* data = nullptr;
  float weight = 1.0f;
};

// out[i] = (..((w0 * x0[i]) + w1 * x1[i]) + ..), each product and each sum rounded; zeros for no
// inputs. One pass over all inputs. `out` overlaps no input. Inputs may be memory that another
// process rewrites meanwhile (a peer's arena): the result is then any numbers at all, to be thrown
// away. `large`: these are part of more sums than stay in a core's caches until somebody reads
// them, and are written past those; what follows orders such writes as it orders any (they are
// fenced).
//
// False: a sum is infinite or not a number, as each is that one of its terms is.
bool WeightedSum(std::span<const Input> inputs, float* out, std::size_t n, bool large);
// Where they are all: large by their own size.
bool WeightedSum(std::span<const Input> inputs, float* out, std::size_t n);

inline std::size_t Grains(std::size_t n, std::size_t grain) { return (n + grain - 1) / grain; }

// out[g] = the sum of squares of data[g * grain .. min(n, (g + 1) * grain)), in double precision,
// for each of the Grains(n, grain). Within a grain element i is added to lane i % 16, in order;
// then lanes j and j + 8 are added, j and j + 4, j + 2, j + 1. Add the grains by index: then the
// norm of a gradient does not depend on who owns what, as long as slices begin on multiples of the
// grain.
void SumOfSquaresByGrain(const float* data, std::size_t n, std::size_t grain, double* out);

// The same n floats, bit for bit, written past the caches: for more than stays in them until
// somebody reads it. Nothing overlaps. `data` may be memory that another process rewrites
// meanwhile. What follows orders the writes as it orders any.
void CopyPastCaches(const float* data, float* out, std::size_t n);

// None of the values is infinite or not a number.
bool AllFinite(const float* data, std::size_t n);

}  // namespace lockstep::worker
