#include <type_traits>

#include "worker/compute/cuda/launch.cuh"
#include "worker/compute/cuda/row_kernels.h"

namespace lockstep::worker::cuda {
namespace {

constexpr unsigned kWarp = 32;
constexpr unsigned kWarps = kThreads / kWarp;
constexpr unsigned kAllLanes = 0xffffffff;
constexpr float kVarianceFloor = 1e-5f;

// Streams are brought to the device as bytes.
static_assert(std::is_trivially_copyable_v<RandomStream>);

// One word of a stream decides four neighbouring elements, 16 bits each.
__global__ void DropoutKernel(std::size_t rows, std::size_t columns, std::uint32_t threshold,
                              std::uint64_t base, float scale, const RandomStream* streams,
                              const float* x, float* y) {
  const std::size_t words = (columns + 3) / 4;
  for (std::size_t r = blockIdx.y; r < rows; r += gridDim.y) {
    const RandomStream stream = streams[r];
    for (std::size_t w = FirstElement(); w < words; w += ElementStride()) {
      const std::uint64_t word = stream.Word(base + w);
      for (unsigned i = 0; i < 4 && 4 * w + i < columns; ++i) {
        const auto draw = static_cast<std::uint32_t>(word >> (16 * i)) & 0xFFFFu;
        const std::size_t at = r * columns + 4 * w + i;
        y[at] = draw >= threshold ? x[at] * scale : 0;
      }
    }
  }
}

// The result is in the first lane.
__device__ float WarpSum(float value) {
  for (unsigned distance = kWarp / 2; distance > 0; distance /= 2) {
    value += __shfl_down_sync(kAllLanes, value, distance);
  }
  return value;
}

// The sum over the block's threads, for all of them.
__device__ float BlockSum(float value) {
  __shared__ float warps[kWarps];
  __shared__ float total;
  value = WarpSum(value);
  if (threadIdx.x % kWarp == 0) warps[threadIdx.x / kWarp] = value;
  __syncthreads();
  if (threadIdx.x == 0) {
    float sum = 0;
    for (unsigned w = 0; w < kWarps; ++w) sum += warps[w];
    total = sum;
  }
  __syncthreads();
  const float result = total;
  __syncthreads();  // before the next call writes
  return result;
}

// There is a block for each row.
__global__ void LayerNormKernel(std::size_t rows, std::size_t columns, const float* x,
                                const float* gain, const float* shift, float* y, float* normalized,
                                float* inverse_deviation) {
  const auto count = static_cast<float>(columns);
  for (std::size_t r = blockIdx.x; r < rows; r += gridDim.x) {
    const float* in = x + r * columns;
    float sum = 0;
    for (std::size_t j = threadIdx.x; j < columns; j += kThreads) sum += in[j];
    const float mean = BlockSum(sum) / count;
    float squares = 0;
    for (std::size_t j = threadIdx.x; j < columns; j += kThreads) {
      const float centred = in[j] - mean;
      squares += centred * centred;
    }
    const float inverse = 1.0f / sqrtf(BlockSum(squares) / count + kVarianceFloor);
    for (std::size_t j = threadIdx.x; j < columns; j += kThreads) {
      const float kept = (in[j] - mean) * inverse;
      normalized[r * columns + j] = kept;
      y[r * columns + j] = kept * gain[j] + shift[j];
    }
    if (threadIdx.x == 0) inverse_deviation[r] = inverse;
  }
}

__global__ void LayerNormBackwardKernel(std::size_t rows, std::size_t columns, const float* dy,
                                        const float* gain, const float* normalized,
                                        const float* inverse_deviation, float* dx) {
  const auto count = static_cast<float>(columns);
  for (std::size_t r = blockIdx.x; r < rows; r += gridDim.x) {
    const float* d = dy + r * columns;
    const float* kept = normalized + r * columns;
    float plain = 0;
    float weighted = 0;
    for (std::size_t j = threadIdx.x; j < columns; j += kThreads) {
      const float g = d[j] * gain[j];
      plain += g;
      weighted += g * kept[j];
    }
    const float mean = BlockSum(plain) / count;
    const float mean_weighted = BlockSum(weighted) / count;
    const float inverse = inverse_deviation[r];
    for (std::size_t j = threadIdx.x; j < columns; j += kThreads) {
      dx[r * columns + j] = (d[j] * gain[j] - mean - kept[j] * mean_weighted) * inverse;
    }
  }
}

// There is a warp for each row.
template <bool kDelta>
__global__ void SoftmaxLossKernel(std::size_t rows, std::size_t classes, const float* logits,
                                  const std::uint16_t* labels, float* delta, RowLoss* losses) {
  const unsigned lane = threadIdx.x % kWarp;
  const std::size_t first = static_cast<std::size_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp;
  const std::size_t stride = static_cast<std::size_t>(gridDim.x) * kWarps;
  for (std::size_t r = first; r < rows; r += stride) {
    const float* row = logits + r * classes;
    const std::size_t label = labels[r];

    // The largest logit; the first of equal ones.
    float largest = row[0];
    std::uint32_t place = 0;
    for (std::size_t j = lane; j < classes; j += kWarp) {
      if (row[j] > largest) {
        largest = row[j];
        place = static_cast<std::uint32_t>(j);
      }
    }
    for (unsigned distance = kWarp / 2; distance > 0; distance /= 2) {
      const float other = __shfl_xor_sync(kAllLanes, largest, distance);
      const std::uint32_t other_place = __shfl_xor_sync(kAllLanes, place, distance);
      if (other > largest || (other == largest && other_place < place)) {
        largest = other;
        place = other_place;
      }
    }

    float sum = 0;
    for (std::size_t j = lane; j < classes; j += kWarp) {
      const float e = expf(row[j] - largest);
      if constexpr (kDelta) delta[r * classes + j] = e;
      sum += e;
    }
    const float total = __shfl_sync(kAllLanes, WarpSum(sum), 0);
    if constexpr (kDelta) {
      const float inverse = 1.0f / total;
      for (std::size_t j = lane; j < classes; j += kWarp) {
        float& d = delta[r * classes + j];
        d = d * inverse - (j == label ? 1.0f : 0.0f);
      }
    }
    if (lane == 0) {
      losses[r] = {logf(total) + (largest - row[label]), place == label ? 1u : 0u};
    }
  }
}

// It is one block, with rows in a fixed order.
__global__ void AddLossesKernel(std::size_t rows, const RowLoss* losses, LossSums* sums) {
  __shared__ double loss[kThreads];
  __shared__ unsigned long long correct[kThreads];
  double own_loss = 0;
  unsigned long long own_correct = 0;
  for (std::size_t r = threadIdx.x; r < rows; r += kThreads) {
    own_loss += static_cast<double>(losses[r].loss);
    own_correct += losses[r].correct;
  }
  loss[threadIdx.x] = own_loss;
  correct[threadIdx.x] = own_correct;
  for (unsigned half = kThreads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) {
      loss[threadIdx.x] += loss[threadIdx.x + half];
      correct[threadIdx.x] += correct[threadIdx.x + half];
    }
  }
  if (threadIdx.x == 0) {
    sums->loss += loss[0];
    sums->correct += correct[0];
  }
}

}  // namespace

void Dropout(cudaStream_t stream, std::size_t rows, std::size_t columns, std::uint32_t threshold,
             std::uint32_t layer, const RandomStream* streams, const float* x, float* y) {
  if (rows == 0 || columns == 0) return;
  const float scale = 65536.0f / static_cast<float>(65536u - threshold);
  const std::uint64_t base = static_cast<std::uint64_t>(layer) << 32;
  DropoutKernel<<<GridForRows(rows, (columns + 3) / 4), kThreads, 0, stream>>>(
      rows, columns, threshold, base, scale, streams, x, y);
  CheckLaunch("dropout");
}

void LayerNorm(cudaStream_t stream, std::size_t rows, std::size_t columns, const float* x,
               const float* gain, const float* shift, float* y, float* normalized,
               float* inverse_deviation) {
  if (rows == 0 || columns == 0) return;
  LayerNormKernel<<<CeilDiv(rows, 1, 1u << 20), kThreads, 0, stream>>>(
      rows, columns, x, gain, shift, y, normalized, inverse_deviation);
  CheckLaunch("layer normalization");
}

void LayerNormBackward(cudaStream_t stream, std::size_t rows, std::size_t columns, const float* dy,
                       const float* gain, const float* normalized, const float* inverse_deviation,
                       float* dx) {
  if (rows == 0 || columns == 0) return;
  LayerNormBackwardKernel<<<CeilDiv(rows, 1, 1u << 20), kThreads, 0, stream>>>(
      rows, columns, dy, gain, normalized, inverse_deviation, dx);
  CheckLaunch("layer normalization's backward pass");
}

void SoftmaxLoss(cudaStream_t stream, std::size_t rows, std::size_t classes, const float* logits,
                 const std::uint16_t* labels, float* delta, RowLoss* losses, LossSums* sums) {
  if (rows == 0) return;
  const unsigned grid = CeilDiv(rows, kWarps, 8192);
  if (delta != nullptr) {
    SoftmaxLossKernel<true>
        <<<grid, kThreads, 0, stream>>>(rows, classes, logits, labels, delta, losses);
  } else {
    SoftmaxLossKernel<false>
        <<<grid, kThreads, 0, stream>>>(rows, classes, logits, labels, delta, losses);
  }
  CheckLaunch("the loss");
  AddLossesKernel<<<1, kThreads, 0, stream>>>(rows, losses, sums);
  CheckLaunch("the loss");
}

}  // namespace lockstep::worker::cuda
