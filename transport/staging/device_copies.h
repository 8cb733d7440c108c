// Copies between memory of a device that the host cannot touch and pinned memory of the host. They
// serve a layer that stages memory for a transport that cannot use the device's
// (staged_transport.h).
#pragma once

#include <cstddef>
#include <functional>

#include "base/result.h"

namespace lockstep::transport {

class DeviceCopies {
 public:
  virtual ~DeviceCopies() = default;

  // Host memory with fast copies to and from the device. kUnavailable where there is none left, or
  // the device has failed.
  virtual Result<std::byte*> AllocatePinned(std::size_t bytes) = 0;
  virtual void FreePinned(std::byte* memory, std::size_t bytes) = 0;

  // Begins a copy and returns. `done` is called once, on a thread of the device's or within the
  // call, when the copy is complete, or with false when the device has failed. It may post, but
  // must not take long. The copy contains all writes to the source before this call, by the host or
  // by operations of the device that were waited for.
  virtual void ToPinned(std::byte* pinned, const std::byte* device, std::size_t bytes,
                        std::function<void(bool)> done) = 0;
  virtual void FromPinned(std::byte* device, const std::byte* pinned, std::size_t bytes,
                          std::function<void(bool)> done) = 0;
};

}  // namespace lockstep::transport
