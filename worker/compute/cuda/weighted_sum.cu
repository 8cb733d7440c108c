#include "worker/compute/cuda/weighted_sum.h"

#include <algorithm>
#include <cstdint>

#include "worker/compute/cuda/finite.cuh"
#include "worker/compute/cuda/launch.cuh"
#include "worker/compute/cuda/pieces.h"

namespace lockstep::worker::cuda {
namespace {

// The most terms of a pass; they are the kernel's arguments.
constexpr unsigned kMostTerms = 64;
struct Terms {
  const float* data[kMostTerms];  // of the first piece
  float weight[kMostTerms];
  unsigned count;
  bool continued;  // `out` holds the sum of the earlier terms
  bool askew;      // the vectors have different alignments to 16 bytes
};

// Counted from the first piece, in all vectors.
struct Piece {
  std::ptrdiff_t first;
  std::size_t count;
};

constexpr unsigned kFour = sizeof(float4) / sizeof(float);

unsigned Skew(const float* data) {
  return static_cast<unsigned>(reinterpret_cast<std::uintptr_t>(data) / sizeof(float) % kFour);
}

// The data is read once: caching it has no use.
__device__ float4 LoadFour(const float* data, std::size_t i) {
  return __ldcs(reinterpret_cast<const float4*>(data) + i);
}
__device__ float4 Times(float w, const float4& x) {
  return {__fmul_rn(w, x.x), __fmul_rn(w, x.y), __fmul_rn(w, x.z), __fmul_rn(w, x.w)};
}
__device__ float4 Plus(const float4& a, const float4& b) {
  return {__fadd_rn(a.x, b.x), __fadd_rn(a.y, b.y), __fadd_rn(a.z, b.z), __fadd_rn(a.w, b.w)};
}
__device__ bool AllFinite(const float4& x) {
  return Finite(x.x) && Finite(x.y) && Finite(x.z) && Finite(x.w);
}

// There is a row of blocks for each piece. kCount: the number of terms, not continued, with all
// loads under way at once; 0: any number.
template <unsigned kCount>
__global__ void SumKernel(const __grid_constant__ Terms terms,
                          const __grid_constant__ Pieces<Piece> pieces, float* out,
                          unsigned* not_finite) {
  const std::ptrdiff_t first = pieces.of[blockIdx.y].first;
  const std::size_t n = pieces.of[blockIdx.y].count;
  out += first;
  // It takes fours where the addresses are aligned for them, and the rest at both ends one by one.
  const std::size_t lead = min(
      n,
      static_cast<std::size_t>(-(reinterpret_cast<std::uintptr_t>(out) / sizeof(float)) % kFour));
  const std::size_t fours = terms.askew ? 0 : (n - lead) / kFour;
  const unsigned count = kCount != 0 ? kCount : terms.count;
  const bool continued = kCount == 0 && terms.continued;
  bool finite = true;
  float4* const out_fours = reinterpret_cast<float4*>(out + lead);
  for (std::size_t i = FirstElement(); i < fours; i += ElementStride()) {
    float4 sum;
    unsigned t = 0;
    if (continued) {
      sum = out_fours[i];
    } else {
      sum = Times(terms.weight[0], LoadFour(terms.data[0] + first + lead, i));
      t = 1;
    }
#pragma unroll 8
    for (; t < count; ++t) {
      sum = Plus(sum, Times(terms.weight[t], LoadFour(terms.data[t] + first + lead, i)));
    }
    out_fours[i] = sum;
    finite = finite && AllFinite(sum);
  }
  for (std::size_t i = FirstElement(); i < n - kFour * fours; i += ElementStride()) {
    const std::size_t at = i < lead || terms.askew ? i : i + kFour * fours;
    float sum = continued ? out[at] : __fmul_rn(terms.weight[0], terms.data[0][first + at]);
    for (unsigned t = continued ? 0 : 1; t < count; ++t) {
      sum = __fadd_rn(sum, __fmul_rn(terms.weight[t], terms.data[t][first + at]));
    }
    out[at] = sum;
    finite = finite && Finite(sum);
  }
  if (!finite) *not_finite = 1;
}

}  // namespace

struct SumBatch::Pending {
  Terms terms{};
  float* out = nullptr;
  Pieces<Piece> pieces;

  // Whether this is one of pieces of the same vectors.
  bool Continues(std::span<const Input> inputs, const float* to) const {
    if (pieces.count == 0 || pieces.full() || inputs.size() != terms.count) return false;
    const std::ptrdiff_t first = Distance(out, to);
    for (std::size_t t = 0; t < inputs.size(); ++t) {
      if (inputs[t].weight != terms.weight[t]) return false;
      if (Distance(terms.data[t], inputs[t].data) != first) return false;
    }
    return true;
  }

  void Begin(std::span<const Input> inputs, float* to, bool continued) {
    out = to;
    pieces.count = 0;
    terms.count = static_cast<unsigned>(inputs.size());
    terms.continued = continued;
    terms.askew = false;
    for (std::size_t t = 0; t < inputs.size(); ++t) {
      terms.data[t] = inputs[t].data;
      terms.weight[t] = inputs[t].weight;
      terms.askew = terms.askew || Skew(inputs[t].data) != Skew(to);
    }
  }
};

SumBatch::SumBatch(cudaStream_t stream, unsigned* not_finite)
    : stream_(stream), not_finite_(not_finite), pending_(std::make_unique<Pending>()) {}
SumBatch::~SumBatch() = default;

void SumBatch::Add(std::span<const Input> inputs, float* out, std::size_t n) {
  if (n == 0) return;
  if (inputs.empty()) {
    Ask();
    Check(cudaMemsetAsync(out, 0, n * sizeof(float), stream_), "clearing a sum");
    return;
  }
  if (pending_->Continues(inputs, out)) {
    pending_->pieces.Add({Distance(pending_->out, out), n});
    return;
  }
  for (std::size_t done = 0; done < inputs.size(); done += kMostTerms) {
    Ask();
    const auto pass = inputs.subspan(done, std::min<std::size_t>(kMostTerms, inputs.size() - done));
    pending_->Begin(pass, out, /*continued=*/done > 0);
    pending_->pieces.Add({0, n});
  }
  // A continued sum has these inputs alone.
  if (inputs.size() > kMostTerms) Ask();
}

void SumBatch::Ask() {
  if (pending_->pieces.count == 0) return;
  const Terms& terms = pending_->terms;
  const Pieces<Piece>& pieces = pending_->pieces;
  const auto start = [&](auto* kernel) {
    const std::size_t fours = pieces.Longest() / (terms.askew ? 1 : kFour);
    const dim3 grid(CeilDiv(fours, kThreads, 1u << 22), pieces.count);
    kernel<<<grid, kThreads, 0, stream_>>>(terms, pieces, pending_->out, not_finite_);
  };
  switch (terms.continued ? 0 : terms.count) {
    case 1:
      start(SumKernel<1>);
      break;
    case 2:
      start(SumKernel<2>);
      break;
    case 3:
      start(SumKernel<3>);
      break;
    case 4:
      start(SumKernel<4>);
      break;
    case 8:
      start(SumKernel<8>);
      break;
    default:
      start(SumKernel<0>);
      break;
  }
  pending_->pieces.count = 0;
  CheckLaunch("a weighted sum");
}

}  // namespace lockstep::worker::cuda
