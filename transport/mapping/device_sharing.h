// Memory of a device that processes of one host show each other: an arena uses it for blocks there
// (arena.h). The owner of such memory implements it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>

#include "base/result.h"
#include "transport/mapping/os.h"

namespace lockstep::transport {

// The name of a device: its kind, and the unit of that kind, the same to all processes of a host.
// It goes over a socket unchanged. The texts are printable; the rest is zeroes.
struct DeviceName {
  std::array<char, 16> kind{};  // "cuda"; empty: the host
  std::array<char, 48> unit{};  // "GPU-8f3a..."

  // Names that are too long are cut off.
  static DeviceName Make(std::string_view kind, std::string_view unit);
  bool proper() const;
  bool host() const { return kind.front() == '\0'; }
  std::string_view kind_text() const;
  std::string_view unit_text() const;
  bool operator==(const DeviceName&) const = default;
};
static_assert(sizeof(DeviceName) == 64);

// Any thread may call it. Failures are values; it lives longer than all of its memory.
class DeviceSharing {
 public:
  virtual ~DeviceSharing() = default;

  virtual DeviceName name() const = 0;

  // Zeroed memory of at least so many bytes, which a peer can have with the descriptor. The memory
  // stays while any process has it mapped, whatever becomes of this one. kUnavailable where the
  // device cannot, or has too little memory.
  struct Exported {
    std::byte* data = nullptr;  // only the device may follow it
    std::uint64_t bytes = 0;
    UniqueFd fd;
  };
  virtual Result<Exported> Export(std::uint64_t bytes) = 0;

  // Maps memory that a peer exported, for this device to read. `of`: the peer's device, of the same
  // kind. kUnavailable where this device does not reach that one.
  virtual Result<std::byte*> Import(const UniqueFd& fd, std::uint64_t bytes,
                                    const DeviceName& of) = 0;

  // Gives back exported or imported memory. The device must not be at work on it.
  virtual void Release(std::byte* data, std::uint64_t bytes) = 0;
};

// Exported or imported memory, given back at the end.
class SharedDeviceMemory {
 public:
  SharedDeviceMemory() = default;
  SharedDeviceMemory(DeviceSharing& device, std::byte* data, std::uint64_t bytes)
      : device_(&device), data_(data), bytes_(bytes) {}
  SharedDeviceMemory(SharedDeviceMemory&& other) noexcept
      : device_(other.device_), data_(std::exchange(other.data_, nullptr)), bytes_(other.bytes_) {}
  SharedDeviceMemory& operator=(SharedDeviceMemory&& other) noexcept {
    std::swap(device_, other.device_);
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~SharedDeviceMemory() {
    if (data_ != nullptr) device_->Release(data_, bytes_);
  }
  std::byte* data() const { return data_; }
  std::uint64_t bytes() const { return bytes_; }
  explicit operator bool() const { return data_ != nullptr; }

 private:
  DeviceSharing* device_ = nullptr;
  std::byte* data_ = nullptr;
  std::uint64_t bytes_ = 0;
};

}  // namespace lockstep::transport
