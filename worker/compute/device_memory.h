// Devices by name: "cpu", "cuda:0", "cuda:1" ..; "cuda" is cuda:0. And the memory of those that
// have one of their own.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"

namespace lockstep::worker {

class ExchangeMemory;

// Whether there is such a device and this program can use it. The error names it and says why not
// and what there is.
Status CheckDevice(const std::string& name);

// Which GPU the name stands for, be there such a one or not; none for other devices.
std::optional<int> GpuNumber(std::string_view name);

// Where a GPU hangs on PCI, "0000:3B:00.0"; empty for other devices and where that is not known.
std::string PciAddress(const std::string& name);

// For the exchange of a program that computes on the device by itself. Null for the CPU. Errors as
// CheckDevice; throws a DeviceError where the device fails.
Result<std::shared_ptr<ExchangeMemory>> MakeDeviceMemory(const std::string& name);

}  // namespace lockstep::worker
