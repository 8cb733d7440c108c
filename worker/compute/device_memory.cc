#include "worker/compute/device_memory.h"

#include <fmt/format.h>

#include <charconv>

#include "worker/compute/cuda/cuda_device.h"

namespace lockstep::worker {
namespace {

Error Refusal(const std::string& name, const std::string& why) {
  return {ErrorCode::kInvalid, fmt::format("{}: {}", name, why)};
}

std::string Available(int gpus) {
  std::string list = "there is cpu";
  for (int i = 0; i < gpus; ++i) list += fmt::format(", cuda:{}", i);
  return list;
}

}  // namespace

std::optional<int> GpuNumber(std::string_view name) {
  if (name == "cuda") return 0;
  if (!name.starts_with("cuda:")) return std::nullopt;
  name.remove_prefix(5);
  int number = -1;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), number);
  if (error != std::errc() || end != name.data() + name.size() || number < 0) return std::nullopt;
  return number;
}

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

Result<std::shared_ptr<ExchangeMemory>> MakeDeviceMemory(const std::string& name) {
  if (Status there = CheckDevice(name); !there.ok()) return there.error();
  if (name == "cpu") return std::shared_ptr<ExchangeMemory>();
  return MakeCudaExchangeMemory(*GpuNumber(name));
}

}  // namespace lockstep::worker
