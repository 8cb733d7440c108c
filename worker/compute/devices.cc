#include "worker/compute/devices.h"

#include <fmt/format.h>

#include <charconv>
#include <optional>
#include <string_view>

#include "worker/compute/cpu/cpu_compute.h"
#include "worker/compute/cuda/cuda_compute.h"

namespace lockstep::worker {
namespace {

// Which GPU; none for another kind of device.
std::optional<int> GpuNumber(std::string_view name) {
  if (name == "cuda") return 0;
  if (!name.starts_with("cuda:")) return std::nullopt;
  name.remove_prefix(5);
  int number = -1;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), number);
  if (error != std::errc() || end != name.data() + name.size() || number < 0) return std::nullopt;
  return number;
}

Error Refusal(const std::string& name, const std::string& why) {
  return {ErrorCode::kInvalid, fmt::format("{}: {}", name, why)};
}

std::string Available(int gpus) {
  std::string list = "there is cpu";
  for (int i = 0; i < gpus; ++i) list += fmt::format(", cuda:{}", i);
  return list;
}

}  // namespace

Status CheckDevice(const std::string& name) {
  if (name == "cpu") return {};
  const std::optional<int> gpu = GpuNumber(name);
  if (!gpu) return Refusal(name, "no such device (" + Available(0) + ")");
  const Result<int> count = CudaDeviceCount();
  if (!count) return Refusal(name, count.error().message + " (" + Available(0) + ")");
  if (*gpu >= *count) return Refusal(name, "no such device (" + Available(*count) + ")");
  return {};
}

std::string PciAddress(const std::string& name) {
  const std::optional<int> gpu = GpuNumber(name);
  return gpu ? CudaPciAddress(*gpu) : "";
}

Result<std::unique_ptr<Compute>> MakeCompute(const std::string& name,
                                             const std::string& precision) {
  if (Status there = CheckDevice(name); !there.ok()) return there.error();
  if (name == "cpu") return MakeCpuCompute();
  return MakeCudaCompute(*GpuNumber(name), precision);
}

}  // namespace lockstep::worker
