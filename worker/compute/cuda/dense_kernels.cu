#include <algorithm>

#include "worker/compute/cuda/dense_kernels.h"
#include "worker/compute/cuda/launch.cuh"

namespace lockstep::worker::cuda {
namespace {

// Blocks of so many columns by so many rows: a warp reads neighbouring columns.
constexpr unsigned kBlockColumns = 32;
constexpr unsigned kBlockRows = 8;

template <bool kRelu>
__global__ void AddBiasKernel(std::size_t rows, std::size_t columns, const float* bias, float* x) {
  const std::size_t j = static_cast<std::size_t>(blockIdx.x) * kBlockColumns + threadIdx.x;
  if (j >= columns) return;
  const float b = bias[j];
  const std::size_t stride = static_cast<std::size_t>(gridDim.y) * kBlockRows;
  for (std::size_t r = static_cast<std::size_t>(blockIdx.y) * kBlockRows + threadIdx.y; r < rows;
       r += stride) {
    const float v = x[r * columns + j] + b;
    x[r * columns + j] = kRelu ? (v > 0 ? v : 0) : v;
  }
}

__global__ void ReluBackwardKernel(std::size_t count, const float* y, float* delta) {
  for (std::size_t i = FirstElement(); i < count; i += ElementStride()) {
    if (!(y[i] > 0)) delta[i] = 0;
  }
}

struct Values {
  const float* x;
  __device__ float operator()(std::size_t i) const { return x[i]; }
};
struct Products {
  const float* x;
  const float* y;
  __device__ float operator()(std::size_t i) const { return x[i] * y[i]; }
};

// It sums chunks of rows in an order that depends on the sizes alone, and then these sums.
template <class Term>
__global__ void ChunkSumsKernel(std::size_t rows, std::size_t columns, std::size_t chunk_rows,
                                Term term, float* chunks) {
  __shared__ float lanes[kBlockRows][kBlockColumns];
  const std::size_t j = static_cast<std::size_t>(blockIdx.x) * kBlockColumns + threadIdx.x;
  const std::size_t from = blockIdx.y * chunk_rows;
  const std::size_t to = from + chunk_rows < rows ? from + chunk_rows : rows;
  float sum = 0;
  if (j < columns) {
    for (std::size_t r = from + threadIdx.y; r < to; r += kBlockRows) sum += term(r * columns + j);
  }
  lanes[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || j >= columns) return;
  for (unsigned i = 1; i < kBlockRows; ++i) sum += lanes[i][threadIdx.x];
  chunks[blockIdx.y * columns + j] = sum;
}

__global__ void AddChunksKernel(std::size_t count, std::size_t columns, const float* chunks,
                                float* sums) {
  const std::size_t j = FirstElement();
  if (j >= columns) return;
  float sum = 0;
  for (std::size_t c = 0; c < count; ++c) sum += chunks[c * columns + j];
  sums[j] += sum;
}

struct Chunks {
  unsigned column_blocks;
  std::size_t rows;  // of a chunk
  unsigned count;
};

// There are enough blocks to fill a GPU, and chunks of some length.
Chunks ChunksOf(std::size_t rows, std::size_t columns) {
  Chunks chunks{};
  chunks.column_blocks = CeilDiv(columns, kBlockColumns, 0x7fffffff);
  const std::size_t most = std::max<std::size_t>(2048 / chunks.column_blocks, 1);
  const std::size_t wanted = std::clamp<std::size_t>(rows / 64, 1, most);
  chunks.rows = (rows + wanted - 1) / wanted;
  chunks.count = CeilDiv(rows, std::max<std::size_t>(chunks.rows, 1), 65535);
  return chunks;
}

template <class Term>
void AddSums(cudaStream_t stream, std::size_t rows, std::size_t columns, Term term, float* scratch,
             float* sums) {
  if (rows == 0 || columns == 0) return;
  const Chunks chunks = ChunksOf(rows, columns);
  ChunkSumsKernel<<<dim3(chunks.column_blocks, chunks.count), dim3(kBlockColumns, kBlockRows), 0,
                    stream>>>(rows, columns, chunks.rows, term, scratch);
  CheckLaunch("column sums");
  AddChunksKernel<<<CeilDiv(columns, kThreads, 0x7fffffff), kThreads, 0, stream>>>(
      chunks.count, columns, scratch, sums);
  CheckLaunch("column sums");
}

}  // namespace

void AddBias(cudaStream_t stream, std::size_t rows, std::size_t columns, const float* bias,
             bool relu, float* x) {
  if (rows == 0 || columns == 0) return;
  const dim3 grid(CeilDiv(columns, kBlockColumns, 0x7fffffff), CeilDiv(rows, kBlockRows * 4, 4096));
  const dim3 block(kBlockColumns, kBlockRows);
  if (relu) {
    AddBiasKernel<true><<<grid, block, 0, stream>>>(rows, columns, bias, x);
  } else {
    AddBiasKernel<false><<<grid, block, 0, stream>>>(rows, columns, bias, x);
  }
  CheckLaunch("adding a bias");
}

void ReluBackward(cudaStream_t stream, std::size_t count, const float* y, float* delta) {
  if (count == 0) return;
  ReluBackwardKernel<<<GridFor(count), kThreads, 0, stream>>>(count, y, delta);
  CheckLaunch("ReLU's backward pass");
}

std::size_t ColumnSumScratch(std::size_t rows, std::size_t columns) {
  return ChunksOf(rows, columns).count * columns;
}

void AddColumnSums(cudaStream_t stream, std::size_t rows, std::size_t columns, const float* x,
                   float* scratch, float* sums) {
  AddSums(stream, rows, columns, Values{x}, scratch, sums);
}

void AddColumnSumsOfProducts(cudaStream_t stream, std::size_t rows, std::size_t columns,
                             const float* x, const float* y, float* scratch, float* sums) {
  AddSums(stream, rows, columns, Products{x, y}, scratch, sums);
}

}  // namespace lockstep::worker::cuda
