// Copies from one place of the device's memory to another.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <memory>

namespace lockstep::worker::cuda {

// Those that are called for one behind the other, none of which touches what another writes, are
// one kernel: a call for each of many small ones would take longer to start than to run. One
// thread.
class CopyBatch {
 public:
  explicit CopyBatch(cudaStream_t stream);
  ~CopyBatch();

  // The same n numbers, bit for bit, at any multiples of a number's size. `from` may be memory of
  // another process, which rewrites it meanwhile, or of another device.
  void Add(std::uint16_t* to, const std::uint16_t* from, std::size_t n);
  void Add(float* to, const float* from, std::size_t n) {
    Add(reinterpret_cast<std::uint16_t*>(to), reinterpret_cast<const std::uint16_t*>(from), 2 * n);
  }
  // What was called for is asked of the stream now, if it was not before.
  void Ask();

 private:
  struct Pending;

  const cudaStream_t stream_;
  const std::unique_ptr<Pending> pending_;
};

}  // namespace lockstep::worker::cuda
