#include "worker/compute/cuda/narrow.h"

#include <algorithm>

#include "worker/compute/cuda/launch.cuh"
#include "worker/compute/cuda/narrow_kernels.cuh"

namespace lockstep::worker::cuda {
namespace {

std::ptrdiff_t NumbersBetween(const std::uint16_t* from, const std::uint16_t* to) {
  return (reinterpret_cast<std::intptr_t>(to) - reinterpret_cast<std::intptr_t>(from)) /
         static_cast<std::ptrdiff_t>(sizeof *to);
}

// Calls with the type's formulae.
template <class Call>
void WithType(NumberType type, Call call) {
  if (type == NumberType::kBf16) {
    call(Bf16Number());
  } else {
    call(Fp16Number());
  }
}

}  // namespace

void NarrowNumbers(cudaStream_t stream, NumberType type, const float* from, std::uint16_t* to,
                   std::size_t n, const Rounding& rounding, std::uint64_t first,
                   unsigned* too_large) {
  if (n == 0) return;
  WithType(type, [&](auto of) {
    NarrowKernel<decltype(of)>
        <<<GridFor(n), kThreads, 0, stream>>>(from, to, n, rounding, first, too_large);
  });
  CheckLaunch("narrowing");
}

struct NarrowSumBatch::Pending {
  NumberType type{};
  NarrowTerms terms{};
  std::uint16_t* out = nullptr;
  Rounding rounding;
  std::uint64_t first = 0;
  Pieces<NarrowPiece> pieces;

  // Whether this is one of pieces of the same vectors, at the distances of the earlier pieces.
  bool Continues(NumberType of, std::span<const NarrowInput> inputs, const std::uint16_t* to,
                 const Rounding& way, std::uint64_t place) const {
    if (pieces.count == 0 || pieces.full() || of != type || inputs.size() != terms.count) {
      return false;
    }
    if (way.stochastic != rounding.stochastic || way.key != rounding.key) return false;
    const std::ptrdiff_t distance = NumbersBetween(out, to);
    if (place != first + static_cast<std::uint64_t>(distance)) return false;
    for (std::size_t t = 0; t < inputs.size(); ++t) {
      if (inputs[t].weight != terms.of[t].weight) return false;
      if (NumbersBetween(terms.of[t].data, inputs[t].data) != distance) return false;
    }
    return true;
  }
};

NarrowSumBatch::NarrowSumBatch(cudaStream_t stream, unsigned* too_large)
    : stream_(stream), too_large_(too_large), pending_(std::make_unique<Pending>()) {}
NarrowSumBatch::~NarrowSumBatch() = default;

void NarrowSumBatch::Add(NumberType type, std::span<const NarrowInput> inputs, std::uint16_t* out,
                         std::size_t n, const Rounding& rounding, std::uint64_t first) {
  if (n == 0) return;
  Pending& pending = *pending_;
  if (inputs.empty()) {
    Ask();
    Check(cudaMemsetAsync(out, 0, n * sizeof *out, stream_), "clearing a sum");
    return;
  }
  const bool many = inputs.size() > kMostNarrowTerms;
  if (!many && pending.Continues(type, inputs, out, rounding, first)) {
    pending.pieces.Add({NumbersBetween(pending.out, out), n});
    return;
  }
  Ask();
  pending.type = type;
  pending.out = out;
  pending.rounding = rounding;
  pending.first = first;
  pending.terms.count = static_cast<unsigned>(inputs.size());
  pending.terms.table = nullptr;
  pending.terms.askew = std::any_of(inputs.begin(), inputs.end(), [&](const NarrowInput& input) {
    return SkewOf(input.data) != SkewOf(out);
  });
  pending.pieces.Add({0, n});
  if (!many) {
    std::copy(inputs.begin(), inputs.end(), pending.terms.of);
    return;
  }
  void* table = nullptr;
  Check(cudaMallocAsync(&table, inputs.size_bytes(), stream_), "memory for the terms of a sum");
  // For memory that is not pinned, it returns when that has been read.
  Check(cudaMemcpyAsync(table, inputs.data(), inputs.size_bytes(), cudaMemcpyHostToDevice, stream_),
        "copying the terms of a sum");
  pending.terms.table = static_cast<const NarrowInput*>(table);
  Ask();
  Check(cudaFreeAsync(table, stream_), "freeing the terms of a sum");
}

void NarrowSumBatch::Ask() {
  Pending& pending = *pending_;
  if (pending.pieces.count == 0) return;
  const std::size_t longest = pending.pieces.Longest() / (pending.terms.askew ? 1 : kNarrowInWord);
  const dim3 grid(GridFor(longest), pending.pieces.count);
  WithType(pending.type, [&](auto of) {
    NarrowSumKernel<decltype(of)><<<grid, kThreads, 0, stream_>>>(
        pending.terms, pending.pieces, pending.out, pending.rounding, pending.first, too_large_);
  });
  pending.pieces.count = 0;
  CheckLaunch("a sum of numbers of 16 bits");
}

struct WidenBatch::Pending {
  NumberType type{};
  const std::uint16_t* from = nullptr;
  float* to = nullptr;
  Pieces<NarrowPiece> pieces;
};

WidenBatch::WidenBatch(cudaStream_t stream)
    : stream_(stream), pending_(std::make_unique<Pending>()) {}
WidenBatch::~WidenBatch() = default;

void WidenBatch::Add(NumberType type, const std::uint16_t* from, float* to, std::size_t n) {
  if (n == 0) return;
  Pending& pending = *pending_;
  const std::ptrdiff_t first = pending.pieces.count == 0 ? 0 : NumbersBetween(pending.from, from);
  if (pending.pieces.count == 0 || pending.pieces.full() || pending.type != type ||
      Distance(pending.to, to) != first) {
    Ask();
    pending.type = type;
    pending.from = from;
    pending.to = to;
  }
  pending.pieces.Add({NumbersBetween(pending.from, from), n});
}

void WidenBatch::Ask() {
  Pending& pending = *pending_;
  if (pending.pieces.count == 0) return;
  const dim3 grid(GridFor(pending.pieces.Longest()), pending.pieces.count);
  WithType(pending.type, [&](auto of) {
    WidenKernel<decltype(of)>
        <<<grid, kThreads, 0, stream_>>>(pending.pieces, pending.from, pending.to);
  });
  pending.pieces.count = 0;
  CheckLaunch("widening");
}

}  // namespace lockstep::worker::cuda
