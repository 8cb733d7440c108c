// A GPU, the CPU that is its reference, and memory on the GPU for tests.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/random.h"
#include "worker/compute/cpu/cpu_compute.h"
#include "worker/compute/cuda/cuda_compute.h"

namespace lockstep::worker {

inline std::unique_ptr<Compute> Gpu(const std::string& precision = "fp32") {
  auto gpu = MakeCudaCompute(0, precision);
  LOCKSTEP_CHECK(gpu.ok(), "{}", gpu.error().message);
  return *std::move(gpu);
}

inline std::vector<float> RandomFloats(std::size_t count, std::uint64_t key, float from = -1,
                                       float to = 1) {
  RandomStream random(91, key);
  std::vector<float> values(count);
  for (float& value : values) value = from + (to - from) * random.NextUniform();
  return values;
}

// Floats on a device, filled from the host and read back.
class OnDevice {
 public:
  OnDevice(Compute& compute, const std::vector<float>& host)
      : compute_(compute), count_(host.size()), memory_(compute, host.size() + 1) {
    Fill(host);
  }
  OnDevice(Compute& compute, std::size_t count)
      : OnDevice(compute, std::vector<float>(count, -77)) {}

  void Fill(const std::vector<float>& host) {
    LOCKSTEP_CHECK(host.size() == count_);
    if (HostLink* link = compute_.host_link()) {
      link->Upload(host, memory_.get());
      compute_.TakeLossSums();  // waits: `host` may go
    } else {
      std::copy(host.begin(), host.end(), memory_.get());
    }
  }
  std::vector<float> Read() const {
    std::vector<float> host(count_);
    if (HostLink* link = compute_.host_link()) {
      link->Wait(link->Download(memory_.get(), host));
    } else {
      std::copy_n(memory_.get(), count_, host.begin());
    }
    return host;
  }
  float* get() const { return memory_.get(); }
  // As bytes, four for each float.
  std::uint8_t* bytes() const { return reinterpret_cast<std::uint8_t*>(memory_.get()); }

 private:
  Compute& compute_;
  std::size_t count_;
  DeviceArray<float> memory_;
};

// |a - b| over |b|, as vectors.
inline double RelativeDistance(const float* a, const float* b, std::size_t count) {
  double difference = 0, size = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const double d = static_cast<double>(a[i]) - static_cast<double>(b[i]);
    difference += d * d;
    size += static_cast<double>(b[i]) * static_cast<double>(b[i]);
  }
  return std::sqrt(difference) / (std::sqrt(size) + 1e-30);
}
inline double RelativeDistance(const std::vector<float>& a, const std::vector<float>& b) {
  EXPECT_EQ(a.size(), b.size());
  return RelativeDistance(a.data(), b.data(), b.size());
}

// Also of NaNs and signs of zero.
inline bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

}  // namespace lockstep::worker
