// Copies between host and device: small arguments of kernels, samples ahead of need, parameters and
// gradients.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "worker/compute/compute.h"
#include "worker/compute/cuda/handles.h"

namespace lockstep::worker::cuda {

// Copies of host memory for the next operations on one stream. The host's memory is read before
// Bring returns.
class SmallUploads {
 public:
  // The result is valid for operations on `stream` before the kSlots-th Bring after this one.
  const std::byte* Bring(std::span<const std::byte> host, const Stream& stream);

 private:
  static constexpr std::size_t kSlots = 8;
  struct Slot {
    PinnedMemory pinned;
    DeviceMemory device;
    Event copied;
  };
  std::array<Slot, kSlots> slots_;
  std::size_t next_ = 0;
};

// Implements Compute::Stage: samples go through pinned memory over a stream of their own, while the
// compute stream works on earlier ones.
class InputRing {
 public:
  const float* Stage(std::span<const float> host, const Stream& compute);

 private:
  // The samples in use, those that are copied, and the earlier ones that may still be in use when
  // the copy is started.
  static constexpr std::size_t kSlots = 3;
  struct Slot {
    PinnedMemory pinned;
    DeviceMemory device;
    Event copied;
  };
  Stream copies_;
  std::array<Slot, kSlots> slots_;
  // Events of the compute stream, by the parity of the Stage: all uses of the second last Stage's
  // result come before the event.
  std::array<Event, 2> asked_;
  std::size_t count_ = 0;
};

class Link final : public HostLink {
 public:
  explicit Link(const Stream& compute) : compute_(compute) {}
  ~Link() override;

  void Pin(std::span<const float> host) override;
  void Upload(std::span<const float> host, float* device) override;
  void Zero(float* device, std::size_t count) override;
  Ticket Download(const float* device, std::span<float> host) override;
  void Wait(Ticket ticket) override;
  Ticket Mark() override;

 private:
  struct UnderWay {
    Event computed;
    Event arrived;
  };

  Ticket NewTicket();

  const Stream& compute_;
  Stream downloads_;
  std::vector<UnderWay> tickets_;
  std::vector<Ticket> free_;
  std::map<const float*, bool> pinned_;  // whether pinning succeeded
};

}  // namespace lockstep::worker::cuda
