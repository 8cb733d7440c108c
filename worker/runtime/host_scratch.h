// Host memory to copy to from a device: pinned where that can be had, since copies to other memory
// are several times slower and each waits by itself.
#pragma once

#include <cstddef>
#include <vector>

#include "transport/staging/device_copies.h"
#include "worker/memory/exchange_memory.h"

namespace lockstep::worker {

// One thread at a time.
class HostScratch {
 public:
  // Takes memory when it is first needed, and gives it back to `memory`, which has to be there.
  explicit HostScratch(ExchangeMemory& memory) : copies_(memory.copies()) {}
  ~HostScratch() { Free(); }
  HostScratch(const HostScratch&) = delete;
  HostScratch& operator=(const HostScratch&) = delete;

  // Of at least so many floats, until the next call. The old content is lost where it grows.
  float* Need(std::size_t floats) {
    if (floats <= floats_) return data_;
    Free();
    auto pinned = copies_ != nullptr ? copies_->AllocatePinned(floats * sizeof(float))
                                     : Result<std::byte*>(nullptr);
    if (pinned && *pinned != nullptr) {
      data_ = reinterpret_cast<float*>(*pinned);
    } else {
      plain_.resize(floats);
      data_ = plain_.data();
    }
    floats_ = floats;
    return data_;
  }

 private:
  void Free() {
    if (data_ != nullptr && data_ != plain_.data()) {
      copies_->FreePinned(reinterpret_cast<std::byte*>(data_), floats_ * sizeof(float));
    }
    data_ = nullptr;
    floats_ = 0;
  }

  transport::DeviceCopies* const copies_;
  std::vector<float> plain_;
  float* data_ = nullptr;
  std::size_t floats_ = 0;
};

}  // namespace lockstep::worker
