// The operations that models are made of, one virtual call for a whole batch. compute/cpu
// implements them; another device stands beside it with the same meaning of every operation.
//
// Memory. Pointers are memory of this device (for the CPU: plain memory) unless their comment says
// "host". Matrices are row-major and dense. Images are channels-last: [rows, height, width,
// channels]. Outputs do not overlap inputs unless said. Threads. An object is used by one thread at
// a time; calls are complete when they return. Determinism. The same inputs give the same bits on
// the same kind of device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "base/random.h"

namespace lockstep::worker {

struct ImageSize {
  std::size_t height = 1;
  std::size_t width = 1;
  std::size_t channels = 1;
  std::size_t size() const { return height * width * channels; }
};

struct LossSums {
  double loss = 0;  // sum over the rows, natural logarithm
  std::uint64_t correct = 0;
};

enum class Transpose : bool { kNo, kYes };

class Compute {
 public:
  virtual ~Compute() = default;

  // Zeroed, aligned to 64 bytes; DeviceArray below frees it.
  virtual void* Allocate(std::size_t bytes) = 0;
  virtual void Free(void* memory) = 0;

  // Brings host memory to the device; valid until the next Stage. The CPU gives back what it got.
  virtual const float* Stage(std::span<const float> host) = 0;

  // c[m, n] = op(a)[m, k] * op(b)[k, n] + beta * c. A transposed operand lies in memory as [k, m]
  // or [n, k].
  virtual void Gemm(Transpose transpose_a, Transpose transpose_b, std::size_t m, std::size_t n,
                    std::size_t k, const float* a, const float* b, float beta, float* c) = 0;

  // x[r, j] = x[r, j] + bias[j], then max(0, .) when `relu`.
  virtual void AddBias(std::size_t rows, std::size_t columns, const float* bias, bool relu,
                       float* x) = 0;
  // delta = 0 where y, the output of a ReLU, is not positive.
  virtual void ReluBackward(std::size_t count, const float* y, float* delta) = 0;
  // sums[j] += sum over r of x[r, j], r ascending.
  virtual void AddColumnSums(std::size_t rows, std::size_t columns, const float* x,
                             float* sums) = 0;

  // [rows, channels, height * width] -> [rows, height * width, channels].
  virtual void ChannelsLast(std::size_t rows, const ImageSize& image, const float* x, float* y) = 0;
  // The 3x3 neighbourhoods, zero beyond the edge: [rows * height * width, 9 * channels].
  virtual void Im2col(std::size_t rows, const ImageSize& image, const float* x, float* columns) = 0;
  // Its adjoint: x = the sum of what the columns hold for each pixel.
  virtual void Col2im(std::size_t rows, const ImageSize& image, const float* columns, float* x) = 0;
  // y = max(0, 2x2 maximum of x + bias), stride 2; an odd last row or column is left out. `choice`
  // (one for each element of y) keeps which of the four it was, the first among equals, or that
  // ReLU cut it off.
  virtual void BiasReluPool(std::size_t rows, const ImageSize& image, const float* x,
                            const float* bias, float* y, std::uint8_t* choice) = 0;
  // dx = dy at the chosen place, 0 elsewhere. `image` is the size before pooling.
  virtual void UnpoolBackward(std::size_t rows, const ImageSize& image, const float* dy,
                              const std::uint8_t* choice, float* dx) = 0;
  // delta = 0 where `choice` says that ReLU cut it off.
  virtual void PoolReluBackward(std::size_t count, const std::uint8_t* choice, float* delta) = 0;

  // y = x / (1 - p) where the element is kept, else 0. Element i of row r is decided by
  // `streams[r]` (host) and (layer, i) alone. `threshold` is p in units of 1/65536, below 65536;
  // with 0, y = x and no stream is read. y may be x. Also its own backward pass.
  virtual void Dropout(std::size_t rows, std::size_t columns, std::uint32_t threshold,
                       std::uint32_t layer, std::span<const RandomStream> streams, const float* x,
                       float* y) = 0;

  // y[r] = normalized x[r] * gain + shift, over the row's elements. `inverse_deviation` [rows] and
  // `normalized` [rows, columns] are kept for the backward pass.
  virtual void LayerNorm(std::size_t rows, std::size_t columns, const float* x, const float* gain,
                         const float* shift, float* y, float* normalized,
                         float* inverse_deviation) = 0;
  // gain_sum[j] += sum over r of dy * normalized, r ascending.
  virtual void LayerNormGain(std::size_t rows, std::size_t columns, const float* dy,
                             const float* normalized, float* gain_sum) = 0;
  virtual void LayerNormBackward(std::size_t rows, std::size_t columns, const float* dy,
                                 const float* gain, const float* normalized,
                                 const float* inverse_deviation, float* dx) = 0;

  // Cross-entropy of softmax(logits) against `labels` (host), each < classes. `delta`, when not
  // null, receives the gradient of the SUM of the losses with respect to the logits.
  virtual LossSums SoftmaxLoss(std::size_t rows, std::size_t classes, const float* logits,
                               std::span<const std::uint16_t> labels, float* delta) = 0;
};

// Memory of a device, freed with the object. The device outlives it.
template <class T>
class DeviceArray {
 public:
  DeviceArray() = default;
  DeviceArray(Compute& compute, std::size_t count)
      : compute_(&compute), data_(static_cast<T*>(compute.Allocate(count * sizeof(T)))) {}
  DeviceArray(DeviceArray&& other) noexcept : compute_(other.compute_), data_(other.data_) {
    other.data_ = nullptr;
  }
  DeviceArray& operator=(DeviceArray&& other) noexcept {
    std::swap(compute_, other.compute_);
    std::swap(data_, other.data_);
    return *this;
  }
  ~DeviceArray() {
    if (data_ != nullptr) compute_->Free(data_);
  }
  T* get() const { return data_; }

 private:
  Compute* compute_ = nullptr;
  T* data_ = nullptr;
};

}  // namespace lockstep::worker
