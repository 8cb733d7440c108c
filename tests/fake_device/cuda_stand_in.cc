// The imitated device in the place of a GPU: with it liblockstep is as a build with CUDA on a
// machine that has one, for programs that compute on "cuda:0" by themselves. What those do with
// CUDA they do here by the functions at the end.
#include <cstring>
#include <memory>
#include <string>

#include "base/check.h"
#include "tests/fake_device/fake_device.h"
#include "tests/fake_device/fake_streams.h"
#include "worker/compute/cuda/cuda_device.h"

namespace lockstep::worker {
namespace {

// For the whole process: views of its memory may be left when that ends.
std::shared_ptr<FakeAddresses>& Addresses() {
  static auto& addresses = *new std::shared_ptr<FakeAddresses>(std::make_shared<FakeAddresses>());
  return addresses;
}

}  // namespace

Result<int> CudaDeviceCount() { return 1; }
std::string CudaPciAddress(int /*number*/) { return {}; }
Result<std::shared_ptr<ExchangeMemory>> MakeCudaExchangeMemory(int number) {
  LOCKSTEP_CHECK(number == 0, "there is one device");
  return std::shared_ptr<ExchangeMemory>(MakeFakeMemory(Addresses()));
}

}  // namespace lockstep::worker

extern "C" {

// A stream, for good.
void* lockstep_imitated_stream() { return new lockstep::worker::FakeStream; }

// Where the host finds what the device has at this address.
void* lockstep_imitated_host(const void* device, std::uint64_t bytes) {
  return lockstep::worker::Addresses()->Host(static_cast<const std::byte*>(device), bytes);
}

// Asks the stream for a copy of what the host has there when it is made.
void lockstep_imitated_copy(void* stream, void* device, const void* host, std::uint64_t bytes) {
  static_cast<lockstep::worker::FakeStream*>(stream)->Ask(
      [=] { std::memcpy(lockstep_imitated_host(device, bytes), host, bytes); });
}

}  // extern "C"
