// The operations that models are made of, one virtual call for a whole batch. compute/cpu
// implements them; another device stands beside it with the same meaning of every operation.
//
// Memory. Pointers are memory of this device (for the CPU: plain memory) unless their comment says
// "host". Matrices are row-major and dense. Images are channels-last: [rows, height, width,
// channels]. Outputs do not overlap inputs unless said. Threads. An object is used by one thread at
// a time. Calls take effect in the order in which they are made. A device may still be at work when
// they return; it is not after TakeLossSums. Determinism. The same inputs give the same bits on the
// same kind of device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
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

// The sizes with which a device computes well.
struct Granularity {
  std::size_t dense_rows = 0;     // rows of a sub-batch
  std::size_t conv_rows = 0;      // the same for a model with convolutions
  std::size_t columns_bytes = 0;  // of the neighbourhoods that are written at a time (Im2col)
};

// The exception of a device that fails, for instance without memory: one line for people. After it
// the object can only be destroyed. The CPU throws it in Allocate, and when it is made.
class DeviceError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class ExchangeMemory;
class HostLink;

class Compute {
 public:
  virtual ~Compute() = default;

  virtual std::string name() const = 0;  // for people
  virtual Granularity granularity() const = 0;
  // The link of a device with memory of its own. It is null where the device's memory is the
  // host's, and lives as long as this object.
  virtual HostLink* host_link() { return nullptr; }
  // Makes memory for the exchange on a device with memory of its own; this object can compute with
  // its pointers. It may outlive this object. It is null where the exchange cannot work there.
  virtual std::shared_ptr<ExchangeMemory> MakeExchangeMemory() { return nullptr; }

  // The memory is zeroed and aligned to 64 bytes; DeviceArray below frees it.
  virtual void* Allocate(std::size_t bytes) = 0;
  virtual void Free(void* memory) = 0;

  // Brings host memory to the device; the result is valid until the second Stage after this one, if
  // the host's memory is unchanged until then. The CPU returns its argument. A device copies while
  // it computes, so an early Stage costs no time.
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
  // Its adjoint: x = the sum of the columns' values for each pixel.
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
  // with 0, y = x and no stream is read. y may be x. It is also its own backward pass.
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

  // Adds the cross-entropy of softmax(logits) against `labels` (host), each < classes, to the sums
  // that TakeLossSums gives. `delta`, when not null, receives the gradient of the SUM of the losses
  // with respect to the logits.
  virtual void SoftmaxLoss(std::size_t rows, std::size_t classes, const float* logits,
                           std::span<const std::uint16_t> labels, float* delta) = 0;
  // The sums since the last call. It returns when all requested work is done.
  virtual LossSums TakeLossSums() = 0;
};

// Copies between the host's memory and a device's, beside its computing. Counts are of floats.
class HostLink {
 public:
  using Ticket = std::uint32_t;
  virtual ~HostLink() = default;

  // This host memory will be copied often, in either direction. Do not pin memory that may be
  // unmapped, or lose its pages, while the device lives: copies would continue with the pinned
  // pages. The same memory may be pinned any number of times. Where it cannot be pinned, copies
  // still work, but slowly, as for memory that was never pinned.
  virtual void Pin(std::span<const float> host) = 0;

  // Work that is requested after this call sees `device` filled. `host` must not change until the
  // next TakeLossSums.
  virtual void Upload(std::span<const float> host, float* device) = 0;
  // It runs in the order of computing.
  virtual void Zero(float* device, std::size_t count) = 0;
  // Copies `device` to `host` after all work requested so far, while the device continues. No later
  // work writes `device` before the ticket was waited for. Each ticket is waited for once; Wait
  // returns when `host` is filled.
  virtual Ticket Download(const float* device, std::span<float> host) = 0;
  virtual void Wait(Ticket ticket) = 0;
  // Returns a ticket to wait until all work requested so far is done.
  virtual Ticket Mark() = 0;
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
