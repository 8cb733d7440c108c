// RAII for CUDA's objects. Failures throw a DeviceError; destructors are silent.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <utility>

namespace lockstep::worker::cuda {

// Throws when `status` is an error. `what`: the attempted operation, for people.
void Check(cudaError_t status, const char* what);

class Stream {
 public:
  Stream() {
    Check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "creating a stream");
  }
  ~Stream() { cudaStreamDestroy(stream_); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  cudaStream_t get() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

// A point in the course of a stream.
class Event {
 public:
  // A thread that waits for it sleeps: there may be more workers than cores.
  Event() {
    Check(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming | cudaEventBlockingSync),
          "creating an event");
  }
  ~Event() {
    if (event_ != nullptr) cudaEventDestroy(event_);
  }
  Event(Event&& other) noexcept : event_(std::exchange(other.event_, nullptr)) {}
  Event& operator=(Event&& other) noexcept {
    std::swap(event_, other.event_);
    return *this;
  }

  void Record(const Stream& stream) { Record(stream.get()); }
  // Records it on a stream of another owner.
  void Record(cudaStream_t stream) { Check(cudaEventRecord(event_, stream), "computing"); }
  // Returns at once when it was never recorded.
  void Wait() const { Check(cudaEventSynchronize(event_), "computing"); }
  // Makes `stream` wait for the last recorded point.
  void HoldUp(const Stream& stream) const {
    Check(cudaStreamWaitEvent(stream.get(), event_, 0), "ordering streams");
  }

 private:
  cudaEvent_t event_ = nullptr;
};

enum class MemoryPlace : bool { kDevice, kPinnedHost };

// Memory that grows by being replaced: contents are lost.
template <MemoryPlace kPlace>
class Memory {
 public:
  Memory() = default;
  ~Memory() { Release(); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  // Returns at least `bytes`; it waits for the device before it replaces memory that may be in use.
  std::byte* Need(std::size_t bytes) {
    if (bytes <= bytes_) return data_;
    if (data_ != nullptr) Check(cudaDeviceSynchronize(), "computing");
    Release();
    void* data = nullptr;
    if constexpr (kPlace == MemoryPlace::kDevice) {
      Check(cudaMalloc(&data, bytes), "allocating memory");
    } else {
      Check(cudaMallocHost(&data, bytes), "allocating pinned host memory");
    }
    data_ = static_cast<std::byte*>(data);
    bytes_ = bytes;
    return data_;
  }
  std::byte* get() const { return data_; }
  void Free() { Release(); }

 private:
  void Release() {
    if constexpr (kPlace == MemoryPlace::kDevice) {
      cudaFree(data_);
    } else {
      cudaFreeHost(data_);
    }
    data_ = nullptr;
    bytes_ = 0;
  }

  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
};

using DeviceMemory = Memory<MemoryPlace::kDevice>;
using PinnedMemory = Memory<MemoryPlace::kPinnedHost>;

}  // namespace lockstep::worker::cuda
