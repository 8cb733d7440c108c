#include "worker/compute/cuda/staging.h"

#include <cstring>

#include "base/log.h"

namespace lockstep::worker::cuda {

const std::byte* SmallUploads::Bring(std::span<const std::byte> host, const Stream& stream) {
  Slot& slot = slots_[next_++ % kSlots];
  slot.copied.Wait();
  std::byte* pinned = slot.pinned.Need(host.size());
  std::byte* device = slot.device.Need(host.size());
  std::memcpy(pinned, host.data(), host.size());
  Check(cudaMemcpyAsync(device, pinned, host.size(), cudaMemcpyHostToDevice, stream.get()),
        "copying to the device");
  slot.copied.Record(stream);
  return device;
}

const float* InputRing::Stage(std::span<const float> host, const Stream& compute) {
  Slot& slot = slots_[count_ % kSlots];
  slot.copied.Wait();  // the copy from its pinned memory, three Stages ago
  std::byte* pinned = slot.pinned.Need(host.size_bytes());
  std::byte* device = slot.device.Need(host.size_bytes());
  std::memcpy(pinned, host.data(), host.size_bytes());
  // Work on the earlier contents, three Stages ago, was started before the last Stage.
  asked_[(count_ + 1) % 2].HoldUp(copies_);
  Check(cudaMemcpyAsync(device, pinned, host.size_bytes(), cudaMemcpyHostToDevice, copies_.get()),
        "copying samples to the device");
  slot.copied.Record(copies_);
  slot.copied.HoldUp(compute);
  asked_[count_ % 2].Record(compute);
  ++count_;
  return reinterpret_cast<const float*>(device);
}

Link::~Link() {
  for (const auto& [host, pinned] : pinned_) {
    if (pinned) cudaHostUnregister(const_cast<float*>(host));
  }
}

void Link::Pin(std::span<const float> host) {
  if (host.empty() || pinned_.contains(host.data())) return;
  const cudaError_t status =
      cudaHostRegister(const_cast<float*>(host.data()), host.size_bytes(), cudaHostRegisterDefault);
  pinned_[host.data()] = status == cudaSuccess;
  if (status == cudaSuccess) return;
  static_cast<void>(cudaGetLastError());  // the next kernel would report it again
  spdlog::warn(
      "{} MiB of host memory cannot be pinned ({}): copies to and from the GPU will hold it up",
      host.size_bytes() >> 20, cudaGetErrorString(status));
}

void Link::Upload(std::span<const float> host, float* device) {
  Check(cudaMemcpyAsync(device, host.data(), host.size_bytes(), cudaMemcpyHostToDevice,
                        compute_.get()),
        "copying parameters to the device");
}

void Link::Zero(float* device, std::size_t count) {
  Check(cudaMemsetAsync(device, 0, count * sizeof(float), compute_.get()), "clearing memory");
}

HostLink::Ticket Link::NewTicket() {
  if (free_.empty()) {
    free_.push_back(static_cast<Ticket>(tickets_.size()));
    tickets_.emplace_back();
  }
  const Ticket ticket = free_.back();
  free_.pop_back();
  return ticket;
}

HostLink::Ticket Link::Download(const float* device, std::span<float> host) {
  const Ticket ticket = NewTicket();
  UnderWay& copy = tickets_[ticket];
  copy.computed.Record(compute_);
  copy.computed.HoldUp(downloads_);
  Check(cudaMemcpyAsync(host.data(), device, host.size_bytes(), cudaMemcpyDeviceToHost,
                        downloads_.get()),
        "copying gradients to the host");
  copy.arrived.Record(downloads_);
  return ticket;
}

HostLink::Ticket Link::Mark() {
  const Ticket ticket = NewTicket();
  tickets_[ticket].arrived.Record(compute_);
  return ticket;
}

void Link::Wait(Ticket ticket) {
  tickets_[ticket].arrived.Wait();
  free_.push_back(ticket);
}

}  // namespace lockstep::worker::cuda
