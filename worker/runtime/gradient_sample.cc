#include "worker/runtime/gradient_sample.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "worker/memory/reduce.h"

namespace lockstep::worker {
namespace {

constexpr std::uint64_t kPiece = 1024;  // floats
constexpr std::uint64_t kPieces = 64;
constexpr std::uint64_t kDevicePieces = 8;

}  // namespace

std::optional<double> SampledSquares(ExchangeMemory& memory, const float* gradient,
                                     std::uint64_t count, std::uint64_t round) {
  const std::uint64_t pieces =
      std::clamp<std::uint64_t>(count / kPiece, 1, memory.on_host() ? kPieces : kDevicePieces);
  const std::uint64_t stride = count / pieces;
  const std::uint64_t length = std::min(kPiece, stride);
  const std::uint64_t places = (stride + length - 1) / length;  // the last one overlaps
  const std::uint64_t first = std::min(round % places * length, stride - length);
  std::vector<float> copied;
  if (!memory.on_host()) {
    copied.resize(pieces * length);
    std::vector<ExchangeMemory::HostCopy> copies;
    for (std::uint64_t p = 0; p < pieces; ++p) {
      copies.push_back(
          {copied.data() + p * length, gradient + first + p * stride, length * sizeof(float)});
    }
    memory.ToHost(copies);
  }
  double squares = 0;
  for (std::uint64_t p = 0; p < pieces; ++p) {
    const float* at = copied.empty() ? gradient + first + p * stride : copied.data() + p * length;
    double some = 0;
    SumOfSquaresByGrain(at, length, length, &some);
    squares += some;
  }
  if (!std::isfinite(squares)) return std::nullopt;
  return squares;
}

}  // namespace lockstep::worker
