// The fused sum on device memory gives the bits of the sum on host memory.
#include "worker/compute/cuda/weighted_sum.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "tests/gpu/device.h"
#include "worker/compute/cuda/handles.h"

namespace lockstep::worker {
namespace {

class GpuWeightedSum : public testing::Test {
 protected:
  // Both sums over the same values, which lie `skew` floats off on the device.
  void Compare(const std::vector<std::vector<float>>& values, const std::vector<float>& weights,
               std::size_t skew) {
    const std::size_t n = values.empty() ? 100 : values[0].size();
    std::vector<Input> host, device;
    std::vector<std::unique_ptr<cuda::DeviceMemory>> memory;
    const auto floats = [&](std::size_t count) {
      memory.push_back(std::make_unique<cuda::DeviceMemory>());
      return reinterpret_cast<float*>(memory.back()->Need((count + skew) * sizeof(float))) + skew;
    };
    for (std::size_t i = 0; i < values.size(); ++i) {
      host.push_back({values[i].data(), weights[i]});
      float* data = floats(n);
      cuda::Check(cudaMemcpy(data, values[i].data(), n * sizeof(float), cudaMemcpyHostToDevice),
                  "copying");
      device.push_back({data, weights[i]});
    }
    float* out = floats(n + 1);
    const std::vector<float> before(n + 1, -7);
    cuda::Check(
        cudaMemcpy(out, before.data(), before.size() * sizeof(float), cudaMemcpyHostToDevice),
        "copying");
    cuda::Check(cudaDeviceSynchronize(), "copying");  // the stream does not wait for copies
    cuda::WeightedSum(stream_.get(), device, out, n);
    cuda::Check(cudaStreamSynchronize(stream_.get()), "summing");
    std::vector<float> result(n + 1);
    cuda::Check(
        cudaMemcpy(result.data(), out, result.size() * sizeof(float), cudaMemcpyDeviceToHost),
        "copying");
    EXPECT_EQ(result.back(), -7) << "written beyond the end";
    result.pop_back();
    std::vector<float> expected(n);
    WeightedSum(host, expected.data(), n);
    EXPECT_TRUE(SameBits(result, expected))
        << values.size() << " inputs of " << n << ", skew " << skew;
  }

  void CompareRandom(std::size_t inputs, std::size_t n, std::size_t skew) {
    std::vector<std::vector<float>> values;
    std::vector<float> weights;
    for (std::size_t i = 0; i < inputs; ++i) {
      values.push_back(RandomFloats(n, i));
      weights.push_back(1.0f / static_cast<float>(i + 3));
    }
    Compare(values, weights, skew);
  }

  cuda::Stream stream_;
};

TEST_F(GpuWeightedSum, AnyNumberOfInputsAnySizeAnyPlace) {
  for (const std::size_t inputs : {0u, 1u, 2u, 3u, 4u, 5u, 7u, 8u, 9u, 16u, 64u, 65u, 130u}) {
    for (const std::size_t n : {1u, 3u, 4u, 1023u, 100001u}) {
      for (const std::size_t skew : {0u, 1u}) CompareRandom(inputs, n, skew);
    }
  }
}

TEST_F(GpuWeightedSum, ExtremesAreRoundedAlike) {
  const float tiny = std::numeric_limits<float>::denorm_min();
  const float least = std::numeric_limits<float>::min();
  const float most = std::numeric_limits<float>::max();
  const float infinity = std::numeric_limits<float>::infinity();
  const std::vector<float> extremes = {0.0f,  -0.0f,    tiny, -tiny, least,        -least,     most,
                                       -most, infinity, 1.0f, -1.0f, 1.0f + 1e-7f, 16777216.0f};
  std::vector<std::vector<float>> values(3);
  for (const float a : extremes) {
    for (const float b : extremes) {
      if (std::isinf(a) && std::isinf(b)) continue;
      values[0].push_back(a);
      values[1].push_back(b);
      values[2].push_back(1e-3f);
    }
  }
  Compare(values, {0.3f, 0.7f, 1.0f}, 0);
  Compare(values, {1.0f, 1.0f, 1.0f}, 1);
}

}  // namespace
}  // namespace lockstep::worker
