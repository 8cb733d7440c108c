// Devices by name: "cpu", "cuda:0", "cuda:1" ..; "cuda" is cuda:0. The file also makes the memory
// of those that have one of their own.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"

namespace lockstep::worker {

class ExchangeMemory;

// Checks that there is such a device and that this program can use it. The error names it, with the
// reason and the devices that exist.
Status CheckDevice(const std::string& name);

// The number of the GPU with that name, whether it exists or not; none for other devices.
std::optional<int> GpuNumber(std::string_view name);

// The PCI address of a GPU, "0000:3B:00.0"; empty for other devices and where it is unknown.
std::string PciAddress(const std::string& name);

// Makes memory for the exchange of a program that computes on the device by itself. It is null for
// the CPU. Errors are those of CheckDevice; it throws a DeviceError where the device fails.
Result<std::shared_ptr<ExchangeMemory>> MakeDeviceMemory(const std::string& name);

}  // namespace lockstep::worker
