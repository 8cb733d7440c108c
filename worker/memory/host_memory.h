// The host's own memory: operations run on the CPU and are done when they return.
#pragma once

#include "worker/memory/exchange_memory.h"

namespace lockstep::worker {

// Pages take memory when they are written.
class HostMemory final : public ExchangeMemory {
 public:
  bool on_host() const override { return true; }
  Result<std::byte*> Allocate(std::size_t bytes) override;
  void Free(std::byte* memory, std::size_t bytes) override;
  void ExpectWhole(std::byte* memory, std::size_t bytes) override;
  void ExpectLittle(std::byte* memory, std::size_t bytes) override;
  void GiveBack(std::byte* memory, std::size_t bytes) override;
  // `memory` begins on a page.
  std::size_t Backed(const std::byte* memory, std::size_t bytes) const override;
  bool WeightedSum(std::span<const Input> inputs, float* out, std::size_t n, bool large) override;
  void SumOfSquaresByGrain(const float* data, std::size_t n, std::size_t grain,
                           double* out) override;
  bool AllFinite(const float* data, std::size_t n) override;
  const rules::Loops& update_loops() const override;
  void Copy(float* to, const float* from, std::size_t n, bool large) override;
  bool WeightedSum(NumberType type, std::span<const NarrowInput> inputs, std::uint16_t* out,
                   std::size_t n, const Rounding& rounding, std::uint64_t first) override;
  void SumOfSquaresByGrain(NumberType type, const std::uint16_t* data, std::size_t n,
                           std::size_t grain, double* out) override;
  void Widen(NumberType type, const std::uint16_t* from, float* to, std::size_t n) override;
  void Copy(std::uint16_t* to, const std::uint16_t* from, std::size_t n) override;
  bool Narrow(NumberType type, const float* from, std::uint16_t* to, std::size_t n,
              const Rounding& rounding, std::uint64_t first) override;
  bool Finish() override { return true; }
  using ExchangeMemory::ToHost;
  void ToHost(std::span<const HostCopy> copies) override;
  void FromHost(void* to, const void* host, std::size_t bytes) override;
  void Zero(float* to, std::size_t n) override;
  transport::DeviceCopies* copies() override { return nullptr; }
  transport::DeviceSharing* sharing() override { return nullptr; }
  ProgramStreams* streams() override { return nullptr; }
};

}  // namespace lockstep::worker
