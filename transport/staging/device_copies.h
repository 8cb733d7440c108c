// Copies between memory of a device that the host cannot touch and pinned memory of the host, for
// who stages what a transport cannot take from the device itself (staged_transport.h).
#pragma once

#include <cstddef>
#include <functional>

#include "base/result.h"

namespace lockstep::transport {

class DeviceCopies {
 public:
  virtual ~DeviceCopies() = default;

  // Host memory that copies are fast from and to. kUnavailable where there is none left, or the
  // device has failed.
  virtual Result<std::byte*> AllocatePinned(std::size_t bytes) = 0;
  virtual void FreePinned(std::byte* memory, std::size_t bytes) = 0;

  // Begins a copy and returns. `done` is called once, on a thread of the device's or within the
  // call, when it is complete, or with false when the device has failed: it may post, and do
  // nothing that takes long. What was written to the source before this call, by the host or by
  // operations of the device that were waited for, is what is copied.
  virtual void ToPinned(std::byte* pinned, const std::byte* device, std::size_t bytes,
                        std::function<void(bool)> done) = 0;
  virtual void FromPinned(std::byte* device, const std::byte* pinned, std::size_t bytes,
                          std::function<void(bool)> done) = 0;
};

}  // namespace lockstep::transport
