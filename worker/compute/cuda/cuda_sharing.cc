#include "worker/compute/cuda/cuda_sharing.h"

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <set>
#include <string>
#include <utility>

#include "worker/compute/cuda/driver_call.h"
#include "worker/compute/cuda/visitor.h"

namespace lockstep::worker::cuda {
namespace {

using transport::DeviceName;
using transport::UniqueFd;

Error Unavailable(std::string why) { return {ErrorCode::kUnavailable, std::move(why)}; }

struct Driver {
  decltype(&cuGetErrorString) GetErrorString = nullptr;
  decltype(&cuDeviceGet) DeviceGet = nullptr;
  decltype(&cuDeviceGetUuid) DeviceGetUuid = nullptr;
  decltype(&cuDeviceGetAttribute) DeviceGetAttribute = nullptr;
  decltype(&cuDeviceCanAccessPeer) DeviceCanAccessPeer = nullptr;
  decltype(&cuMemGetAllocationGranularity) MemGetAllocationGranularity = nullptr;
  decltype(&cuMemCreate) MemCreate = nullptr;
  decltype(&cuMemRelease) MemRelease = nullptr;
  decltype(&cuMemExportToShareableHandle) MemExportToShareableHandle = nullptr;
  decltype(&cuMemImportFromShareableHandle) MemImportFromShareableHandle = nullptr;
  decltype(&cuMemAddressReserve) MemAddressReserve = nullptr;
  decltype(&cuMemAddressFree) MemAddressFree = nullptr;
  decltype(&cuMemMap) MemMap = nullptr;
  decltype(&cuMemUnmap) MemUnmap = nullptr;
  decltype(&cuMemSetAccess) MemSetAccess = nullptr;

  std::string Words(CUresult result) const {
    const char* text = nullptr;
    if (GetErrorString == nullptr || GetErrorString(result, &text) != CUDA_SUCCESS ||
        text == nullptr) {
      return fmt::format("error {} of the CUDA driver", static_cast<int>(result));
    }
    return text;
  }
  Error Failed(const char* what, CUresult result) const {
    return Unavailable(fmt::format("{}: {}", what, Words(result)));
  }
};

Result<Driver> FindDriver() {
  Driver driver;
  const char* missing = nullptr;
  const auto find = [&](const char* name, auto& function) {
    if (missing == nullptr && !FindDriverCall(name, function)) missing = name;
  };
  find("cuGetErrorString", driver.GetErrorString);
  find("cuDeviceGet", driver.DeviceGet);
  find("cuDeviceGetUuid", driver.DeviceGetUuid);
  find("cuDeviceGetAttribute", driver.DeviceGetAttribute);
  find("cuDeviceCanAccessPeer", driver.DeviceCanAccessPeer);
  find("cuMemGetAllocationGranularity", driver.MemGetAllocationGranularity);
  find("cuMemCreate", driver.MemCreate);
  find("cuMemRelease", driver.MemRelease);
  find("cuMemExportToShareableHandle", driver.MemExportToShareableHandle);
  find("cuMemImportFromShareableHandle", driver.MemImportFromShareableHandle);
  find("cuMemAddressReserve", driver.MemAddressReserve);
  find("cuMemAddressFree", driver.MemAddressFree);
  find("cuMemMap", driver.MemMap);
  find("cuMemUnmap", driver.MemUnmap);
  find("cuMemSetAccess", driver.MemSetAccess);
  if (missing != nullptr) {
    return Unavailable(fmt::format("this CUDA driver has no {}", missing));
  }
  return driver;
}

// Returns "GPU-8f3a1c5e-...", as nvidia-smi shows it; also for a part of a GPU (MIG).
std::string UuidText(const CUuuid& uuid) {
  std::string text = "GPU";
  for (std::size_t i = 0; i < sizeof(uuid.bytes); ++i) {
    if (i == 0 || i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += fmt::format("{:02x}", static_cast<unsigned char>(uuid.bytes[i]));
  }
  return text;
}

// Physical memory of the driver. A mapping keeps it too, so this object lives only for a short
// time.
class Physical {
 public:
  Physical(const Driver& driver, CUmemGenericAllocationHandle handle)
      : driver_(driver), handle_(handle) {}
  ~Physical() { driver_.MemRelease(handle_); }
  Physical(const Physical&) = delete;
  Physical& operator=(const Physical&) = delete;
  CUmemGenericAllocationHandle get() const { return handle_; }

 private:
  const Driver& driver_;
  const CUmemGenericAllocationHandle handle_;
};

class CudaSharing final : public transport::DeviceSharing {
 public:
  explicit CudaSharing(int number) : number_(number), driver_(FindDriver()) {
    const Visitor here(number);  // it initializes the driver
    if (!driver_) {
      unable_ = driver_.error().message;
      return;
    }
    CUuuid uuid{};
    if (const CUresult found = driver_->DeviceGet(&device_, number); found != CUDA_SUCCESS) {
      unable_ = driver_->Failed("the driver does not know the GPU", found).message;
    } else if (driver_->DeviceGetUuid(&uuid, device_) == CUDA_SUCCESS) {
      name_ = DeviceName::Make(kKind, UuidText(uuid));
    }
    if (unable_.empty()) unable_ = WhyUnable();
  }

  DeviceName name() const override { return name_; }

  Result<Exported> Export(std::uint64_t bytes) override {
    if (!unable_.empty()) return Unavailable(unable_);
    const Visitor here(number_);  // a program's thread may call it too
    if (Status chosen = Chosen(here); !chosen) return chosen.error();
    const CUmemAllocationProp wanted = Wanted();
    std::size_t grain = 0;
    if (const CUresult asked = driver_->MemGetAllocationGranularity(
            &grain, &wanted, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED);
        asked != CUDA_SUCCESS || grain == 0) {
      return driver_->Failed("cannot ask for the granularity of memory to export", asked);
    }
    bytes = (std::max<std::uint64_t>(bytes, 1) + grain - 1) / grain * grain;
    CUmemGenericAllocationHandle handle{};
    if (const CUresult made = driver_->MemCreate(&handle, bytes, &wanted, 0);
        made != CUDA_SUCCESS) {
      return Unavailable(
          fmt::format("cannot have {} MiB of the GPU's memory that can be exported: {}",
                      bytes >> 20, driver_->Words(made)));
    }
    const Physical physical(*driver_, handle);
    int fd = -1;
    if (const CUresult exported = driver_->MemExportToShareableHandle(
            &fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
        exported != CUDA_SUCCESS) {
      return driver_->Failed("cannot export memory of the GPU", exported);
    }
    UniqueFd descriptor(fd);
    auto data = Map(physical, bytes, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    if (!data) return data.error();
    if (!Clear(*data, bytes)) {
      static_cast<void>(cudaGetLastError());
      Release(*data, bytes);
      return Unavailable("cannot clear memory of the GPU");
    }
    {
      const std::lock_guard lock(mutex_);
      exported_.insert(*data);
    }
    Exported result;
    result.data = *data;
    result.bytes = bytes;
    result.fd = std::move(descriptor);
    return result;
  }

  Result<std::byte*> Import(const UniqueFd& fd, std::uint64_t bytes,
                            const DeviceName& of) override {
    if (!unable_.empty()) return Unavailable(unable_);
    const Visitor here(number_);
    if (Status chosen = Chosen(here); !chosen) return chosen.error();
    if (Status reached = CheckReach(of); !reached) return reached.error();
    CUmemGenericAllocationHandle handle{};
    if (const CUresult imported = driver_->MemImportFromShareableHandle(
            &handle, reinterpret_cast<void*>(static_cast<std::uintptr_t>(fd.get())),
            CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
        imported != CUDA_SUCCESS) {
      return driver_->Failed("cannot import the memory of its GPU", imported);
    }
    const Physical physical(*driver_, handle);
    // Not every driver supports memory that a GPU may only read.
    auto data = Map(physical, bytes, CU_MEM_ACCESS_FLAGS_PROT_READ);
    if (!data) data = Map(physical, bytes, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    return data;
  }

  void Release(std::byte* data, std::uint64_t bytes) override {
    const Visitor here(number_);  // on the thread of the last owner
    if (Forget(data) && here.status() == cudaSuccess) {
      // A worker that ends early cannot always wait for the work in its own memory.
      cudaDeviceSynchronize();
      static_cast<void>(cudaGetLastError());
    }
    const auto address = reinterpret_cast<CUdeviceptr>(data);
    driver_->MemUnmap(address, bytes);
    driver_->MemAddressFree(address, bytes);
  }

 private:
  static constexpr const char* kKind = "cuda";

  // Returns whether it was exported.
  bool Forget(std::byte* data) {
    const std::lock_guard lock(mutex_);
    return exported_.erase(data) != 0;
  }

  // Makes the device's primary context this thread's.
  static Status Chosen(const Visitor& here) {
    if (here.status() == cudaSuccess) return {};
    static_cast<void>(cudaGetLastError());
    return Unavailable(fmt::format("cannot choose the GPU: {}", cudaGetErrorString(here.status())));
  }

  // It uses a stream that waits for no other: a program may have much work under way on others.
  static bool Clear(std::byte* data, std::uint64_t bytes) {
    cudaStream_t stream = nullptr;
    if (cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) != cudaSuccess) return false;
    const bool cleared = cudaMemsetAsync(data, 0, bytes, stream) == cudaSuccess &&
                         cudaStreamSynchronize(stream) == cudaSuccess;
    return cudaStreamDestroy(stream) == cudaSuccess && cleared;
  }

  bool Has(CUdevice_attribute attribute) const {
    int has = 0;
    return driver_->DeviceGetAttribute(&has, attribute, device_) == CUDA_SUCCESS && has != 0;
  }

  std::string WhyUnable() const {
    if (!Has(CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED)) {
      return "this GPU or its driver has no virtual memory management";
    }
    if (!Has(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED)) {
      return "this GPU's memory cannot be exported as file descriptors";
    }
    if (name_.host()) return "the driver does not tell the GPU's UUID";
    return {};
  }

  CUmemAllocationProp Wanted() const {
    CUmemAllocationProp wanted{};
    wanted.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    wanted.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    wanted.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    wanted.location.id = device_;
    // Peers on other hosts fetch from the same memory.
    wanted.allocFlags.gpuDirectRDMACapable =
        Has(CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED) ? 1 : 0;
    return wanted;
  }

  // Checks that this GPU can read the other's memory.
  Status CheckReach(const DeviceName& of) const {
    if (of == name_) return {};
    int count = 0;
    if (cudaGetDeviceCount(&count) != cudaSuccess) static_cast<void>(cudaGetLastError());
    for (int i = 0; i < count; ++i) {
      CUdevice other{};
      CUuuid uuid{};
      if (driver_->DeviceGet(&other, i) != CUDA_SUCCESS ||
          driver_->DeviceGetUuid(&uuid, other) != CUDA_SUCCESS ||
          DeviceName::Make(kKind, UuidText(uuid)) != of) {
        continue;
      }
      int can = 0;
      if (driver_->DeviceCanAccessPeer(&can, device_, other) == CUDA_SUCCESS && can != 0) return {};
      return Unavailable(
          fmt::format("there is no peer access from {} to its {}; see nvidia-smi "
                      "topo -p2p r",
                      name_.unit_text(), of.unit_text()));
    }
    return Unavailable(
        fmt::format("its {} is not to be seen in this process; leave it in "
                    "CUDA_VISIBLE_DEVICES",
                    of.unit_text()));
  }

  Result<std::byte*> Map(const Physical& physical, std::uint64_t bytes,
                         CUmemAccess_flags access) const {
    CUdeviceptr address{};
    if (const CUresult reserved = driver_->MemAddressReserve(&address, bytes, 0, 0, 0);
        reserved != CUDA_SUCCESS) {
      return driver_->Failed("cannot reserve addresses of the GPU", reserved);
    }
    if (const CUresult mapped = driver_->MemMap(address, bytes, 0, physical.get(), 0);
        mapped != CUDA_SUCCESS) {
      driver_->MemAddressFree(address, bytes);
      return driver_->Failed("cannot map memory of a GPU", mapped);
    }
    CUmemAccessDesc allowed{};
    allowed.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    allowed.location.id = device_;
    allowed.flags = access;
    if (const CUresult set = driver_->MemSetAccess(address, bytes, &allowed, 1);
        set != CUDA_SUCCESS) {
      driver_->MemUnmap(address, bytes);
      driver_->MemAddressFree(address, bytes);
      return driver_->Failed("cannot let the GPU read mapped memory", set);
    }
    return reinterpret_cast<std::byte*>(address);
  }

  const int number_;
  const Result<Driver> driver_;
  CUdevice device_{};
  DeviceName name_;
  std::string unable_;  // why nothing can be shared; empty: it can
  std::mutex mutex_;
  std::set<std::byte*> exported_;  // guarded by mutex_
};

}  // namespace

std::unique_ptr<transport::DeviceSharing> MakeCudaSharing(int number) {
  return std::make_unique<CudaSharing>(number);
}

}  // namespace lockstep::worker::cuda
