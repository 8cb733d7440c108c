#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <array>

#include "tools/doctor/cuda.h"

namespace lockstep::doctor {
namespace {

constexpr std::size_t kBytes = std::size_t{64} << 20;

std::string VersionText(int version) {
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

// It clears the error as well, which belongs to this call.
Status Check(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return {};
  static_cast<void>(cudaGetLastError());
  return Error{ErrorCode::kUnavailable, fmt::format("{}: {}", what, cudaGetErrorString(status))};
}

std::string PciOf(int device) {
  std::array<char, 32> address{};
  const bool known = Check(cudaDeviceGetPCIBusId(address.data(), address.size(), device), "").ok();
  return known ? address.data() : "";
}

// The memory is pinned, so that the device reads and writes it by itself.
Result<std::shared_ptr<std::byte>> AllocatePinned(std::size_t bytes) {
  void* memory = nullptr;
  if (Status done = Check(cudaMallocHost(&memory, bytes), "no pinned memory"); !done) {
    return done.error();
  }
  return std::shared_ptr<std::byte>(static_cast<std::byte*>(memory),
                                    [](std::byte* pinned) { cudaFreeHost(pinned); });
}

Result<std::shared_ptr<std::byte>> AllocateAt(std::optional<int> device, std::size_t bytes) {
  return device ? AllocateOn(*device, bytes) : AllocatePinned(bytes);
}

// The path between two GPUs; it enables the direct one.
std::string PathBetween(int from, int to) {
  int can = 0;
  if (!Check(cudaDeviceCanAccessPeer(&can, from, to), "").ok() || can == 0) {
    return "through the host: no peer access";
  }
  static_cast<void>(UseDevice(from));
  static_cast<void>(Check(cudaDeviceEnablePeerAccess(to, 0), ""));
  return "peer access";
}

}  // namespace

CudaFacts AskCuda() {
  CudaFacts facts;
  facts.built = true;
  facts.version = VersionText(CUDART_VERSION);
  int driver = 0;
  if (Check(cudaDriverGetVersion(&driver), "").ok() && driver != 0) {
    facts.driver = VersionText(driver);
  }
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status == cudaErrorNoDevice) {
    static_cast<void>(cudaGetLastError());
    return facts;
  }
  if (Status done = Check(status, "CUDA cannot be used"); !done) {
    facts.error = done.error().message;
    return facts;
  }
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    cudaDeviceProp properties{};
    if (Status done = Check(cudaGetDeviceProperties(&properties, ordinal), "a device is silent");
        !done) {
      facts.error = fmt::format("cuda:{}: {}", ordinal, done.error().message);
      return facts;
    }
    facts.devices.push_back({ordinal, properties.name, properties.totalGlobalMem, PciOf(ordinal)});
  }
  return facts;
}

Result<std::shared_ptr<std::byte>> AllocateOn(int device, std::size_t bytes) {
  if (Status done = UseDevice(device); !done) return done.error();
  void* memory = nullptr;
  if (Status done = Check(cudaMalloc(&memory, bytes), "no memory on the device"); !done) {
    return done.error();
  }
  if (Status done = Check(cudaMemset(memory, 1, bytes), "memory on the device"); !done) {
    cudaFree(memory);
    return done.error();
  }
  return std::shared_ptr<std::byte>(static_cast<std::byte*>(memory),
                                    [](std::byte* used) { cudaFree(used); });
}

Status UseDevice(int device) { return Check(cudaSetDevice(device), "the device cannot be used"); }

Result<Copied> MeasureCopy(std::optional<int> from, std::optional<int> to, Duration length) {
  const auto source = AllocateAt(from, kBytes);
  if (!source) return source.error();
  const auto destination = AllocateAt(to, kBytes);
  if (!destination) return destination.error();
  Copied copied;
  copied.path = from && to ? PathBetween(*from, *to) : "pinned memory";
  if (Status done = UseDevice(from ? *from : *to); !done) return done.error();
  // Between devices, cudaMemcpy may return before it is done.
  const auto once = [&] {
    Status done = Check(cudaMemcpy(destination->get(), source->get(), kBytes, cudaMemcpyDefault),
                        "a copy failed");
    return done ? Check(cudaDeviceSynchronize(), "a copy failed") : done;
  };
  if (Status done = once(); !done) return done.error();  // the first copy prepares the path
  const Time begin = MonotonicNow();
  std::size_t bytes = 0;
  Duration took{};
  do {
    if (Status done = once(); !done) return done.error();
    bytes += kBytes;
    took = MonotonicNow() - begin;
  } while (took < length);
  copied.gb_per_second = static_cast<double>(bytes) / Seconds(took) / 1e9;
  return copied;
}

}  // namespace lockstep::doctor
