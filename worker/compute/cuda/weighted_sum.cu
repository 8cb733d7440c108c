#include <algorithm>
#include <cstdint>

#include "worker/compute/cuda/launch.cuh"
#include "worker/compute/cuda/weighted_sum.h"

namespace lockstep::worker::cuda {
namespace {

// As many as are summed in a pass; they travel as the kernel's arguments.
constexpr unsigned kMost = 64;
struct Terms {
  const float* data[kMost];
  float weight[kMost];
  unsigned count;
  bool continued;  // `out` holds the sum of the terms before
};

// Data is read once: no use for it in the caches.
__device__ float4 LoadFour(const float* data, std::size_t i) {
  return __ldcs(reinterpret_cast<const float4*>(data) + i);
}
__device__ float4 Times(float w, const float4& x) {
  return {__fmul_rn(w, x.x), __fmul_rn(w, x.y), __fmul_rn(w, x.z), __fmul_rn(w, x.w)};
}
__device__ float4 Plus(const float4& a, const float4& b) {
  return {__fadd_rn(a.x, b.x), __fadd_rn(a.y, b.y), __fadd_rn(a.z, b.z), __fadd_rn(a.w, b.w)};
}

// kCount: how many terms, not continued, all loads under way at once; 0: any number.
template <unsigned kCount>
__global__ void SumFoursKernel(const __grid_constant__ Terms terms, std::size_t fours, float* out) {
  const unsigned count = kCount != 0 ? kCount : terms.count;
  for (std::size_t i = FirstElement(); i < fours; i += ElementStride()) {
    float4 sum;
    unsigned first = 0;
    if (kCount == 0 && terms.continued) {
      sum = reinterpret_cast<const float4*>(out)[i];
    } else {
      sum = Times(terms.weight[0], LoadFour(terms.data[0], i));
      first = 1;
    }
#pragma unroll 8
    for (unsigned t = first; t < count; ++t) {
      sum = Plus(sum, Times(terms.weight[t], LoadFour(terms.data[t], i)));
    }
    reinterpret_cast<float4*>(out)[i] = sum;
  }
}

// Elements from `from` on one by one: what is left over of the fours, or all where the memory lies
// askew.
__global__ void SumSinglesKernel(const __grid_constant__ Terms terms, std::size_t from,
                                 std::size_t n, float* out) {
  for (std::size_t i = from + FirstElement(); i < n; i += ElementStride()) {
    float sum = terms.continued ? out[i] : __fmul_rn(terms.weight[0], terms.data[0][i]);
    for (unsigned t = terms.continued ? 0 : 1; t < terms.count; ++t) {
      sum = __fadd_rn(sum, __fmul_rn(terms.weight[t], terms.data[t][i]));
    }
    out[i] = sum;
  }
}

bool Aligned(const float* data) {
  return reinterpret_cast<std::uintptr_t>(data) % sizeof(float4) == 0;
}

void SumFours(cudaStream_t stream, const Terms& terms, std::size_t fours, float* out) {
  const unsigned grid = CeilDiv(fours, kThreads, 1u << 22);
  switch (terms.continued ? 0 : terms.count) {
    case 1:
      return SumFoursKernel<1><<<grid, kThreads, 0, stream>>>(terms, fours, out);
    case 2:
      return SumFoursKernel<2><<<grid, kThreads, 0, stream>>>(terms, fours, out);
    case 3:
      return SumFoursKernel<3><<<grid, kThreads, 0, stream>>>(terms, fours, out);
    case 4:
      return SumFoursKernel<4><<<grid, kThreads, 0, stream>>>(terms, fours, out);
    case 8:
      return SumFoursKernel<8><<<grid, kThreads, 0, stream>>>(terms, fours, out);
    default:
      return SumFoursKernel<0><<<grid, kThreads, 0, stream>>>(terms, fours, out);
  }
}

}  // namespace

void WeightedSum(cudaStream_t stream, std::span<const Input> inputs, float* out, std::size_t n) {
  if (n == 0) return;
  if (inputs.empty()) {
    Check(cudaMemsetAsync(out, 0, n * sizeof(float), stream), "clearing a sum");
    return;
  }
  for (std::size_t done = 0; done < inputs.size(); done += kMost) {
    const auto pass = inputs.subspan(done, std::min<std::size_t>(kMost, inputs.size() - done));
    Terms terms{};
    terms.count = static_cast<unsigned>(pass.size());
    terms.continued = done > 0;
    bool aligned = Aligned(out);
    for (std::size_t t = 0; t < pass.size(); ++t) {
      terms.data[t] = pass[t].data;
      terms.weight[t] = pass[t].weight;
      aligned = aligned && Aligned(pass[t].data);
    }
    const std::size_t fours = aligned ? n / 4 : 0;
    if (fours > 0) {
      SumFours(stream, terms, fours, out);
      CheckLaunch("a weighted sum");
    }
    if (fours * 4 < n) {
      SumSinglesKernel<<<GridFor(n - fours * 4), kThreads, 0, stream>>>(terms, fours * 4, n, out);
      CheckLaunch("a weighted sum");
    }
  }
}

}  // namespace lockstep::worker::cuda
