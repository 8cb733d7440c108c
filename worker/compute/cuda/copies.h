// Copies from one place of the device's memory to another.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <memory>

namespace lockstep::worker::cuda {

// Consecutive copies are one kernel, if none of them touches memory that another writes. A call for
// each of many small copies would take longer to start than to run. It belongs to one thread.
class CopyBatch {
 public:
  explicit CopyBatch(cudaStream_t stream);
  ~CopyBatch();

  // Copies n numbers, bit for bit, at any multiples of a number's size. `from` may be memory of
  // another process, which rewrites it meanwhile, or of another device.
  void Add(std::uint16_t* to, const std::uint16_t* from, std::size_t n);
  void Add(float* to, const float* from, std::size_t n) {
    Add(reinterpret_cast<std::uint16_t*>(to), reinterpret_cast<const std::uint16_t*>(from), 2 * n);
  }
  // Starts the collected copies on the stream now, if they have not started before.
  void Ask();

 private:
  struct Pending;

  const cudaStream_t stream_;
  const std::unique_ptr<Pending> pending_;
};

}  // namespace lockstep::worker::cuda
