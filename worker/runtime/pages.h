// Memory of a worker that is returned when the object ends.
#pragma once

#include <cstddef>
#include <utility>

#include "base/result.h"
#include "worker/memory/exchange_memory.h"

namespace lockstep::worker {

// Zeroed. `memory` outlives it.
class Pages {
 public:
  static Result<Pages> Reserve(ExchangeMemory& memory, std::size_t bytes) {
    auto data = memory.Allocate(bytes);
    if (!data) return data.error();
    return Pages(memory, *data, bytes);
  }
  Pages(Pages&& other) noexcept
      : memory_(other.memory_),
        data_(std::exchange(other.data_, nullptr)),
        bytes_(std::exchange(other.bytes_, 0)) {}
  Pages& operator=(Pages&& other) noexcept {
    std::swap(memory_, other.memory_);
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~Pages() {
    if (data_ != nullptr) memory_->Free(data_, bytes_);
  }

  std::byte* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }
  std::size_t backed() const { return memory_->Backed(data_, bytes_); }

 private:
  Pages(ExchangeMemory& memory, std::byte* data, std::size_t bytes)
      : memory_(&memory), data_(data), bytes_(bytes) {}
  ExchangeMemory* memory_;
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace lockstep::worker
