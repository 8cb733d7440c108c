// The fused sum on device memory gives the bits of the sum on host memory.
#include "worker/compute/cuda/weighted_sum.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <new>
#include <utility>
#include <vector>

#include "tests/gpu/device.h"
#include "worker/compute/cuda/handles.h"

namespace lockstep::worker {
namespace {

class GpuWeightedSum : public testing::Test {
 protected:
  // Both sums over the same values, which lie `skew` floats off on the device; each vector so many
  // more off than the one before where `apart` is not 0.
  void Compare(const std::vector<std::vector<float>>& values, const std::vector<float>& weights,
               std::size_t skew, std::size_t apart = 0) {
    const std::size_t n = values.empty() ? 100 : values[0].size();
    std::vector<Input> host, device;
    std::vector<std::unique_ptr<cuda::DeviceMemory>> memory;
    const auto floats = [&](std::size_t count) {
      memory.push_back(std::make_unique<cuda::DeviceMemory>());
      const std::size_t off = skew + apart * memory.size();
      return reinterpret_cast<float*>(memory.back()->Need((count + off) * sizeof(float))) + off;
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
    // In pieces of several sizes, more of them than one kernel makes.
    for (std::size_t from = 0, piece = 1; from < n;
         piece = std::min<std::size_t>(piece * 3 + 1, 700)) {
      const std::size_t count = std::min(piece, n - from);
      std::vector<Input> inputs = device;
      for (Input& input : inputs) input.data += from;
      sums_.Add(inputs, out + from, count);
      from += count;
    }
    if (values.empty()) sums_.Add({}, out, n);
    sums_.Ask();
    cuda::Check(cudaStreamSynchronize(stream_.get()), "summing");
    std::vector<float> result(n + 1);
    cuda::Check(
        cudaMemcpy(result.data(), out, result.size() * sizeof(float), cudaMemcpyDeviceToHost),
        "copying");
    EXPECT_EQ(result.back(), -7) << "written beyond the end";
    result.pop_back();
    std::vector<float> expected(n);
    WeightedSum(host, expected.data(), n);
    // Which NaN it is is not promised.
    for (std::vector<float>* sums : {&result, &expected}) {
      for (float& sum : *sums) {
        if (std::isnan(sum)) sum = std::numeric_limits<float>::quiet_NaN();
      }
    }
    EXPECT_TRUE(SameBits(result, expected))
        << values.size() << " inputs of " << n << ", skew " << skew;
  }

  void CompareRandom(std::size_t inputs, std::size_t n, std::size_t skew, std::size_t apart = 0) {
    std::vector<std::vector<float>> values;
    std::vector<float> weights;
    for (std::size_t i = 0; i < inputs; ++i) {
      values.push_back(RandomFloats(n, i));
      weights.push_back(1.0f / static_cast<float>(i + 3));
    }
    Compare(values, weights, skew, apart);
  }

  bool NotFinite() { return std::exchange(*not_finite_, 0u) != 0; }

  cuda::Stream stream_;
  cuda::PinnedMemory memory_;
  unsigned* const not_finite_ = new (memory_.Need(sizeof(unsigned))) unsigned(0);
  cuda::SumBatch sums_{stream_.get(), not_finite_};
};

TEST_F(GpuWeightedSum, AnyNumberOfInputsAnySizeAnyPlace) {
  for (const std::size_t inputs : {0u, 1u, 2u, 3u, 4u, 5u, 7u, 8u, 9u, 16u, 64u, 65u, 130u}) {
    for (const std::size_t n : {1u, 3u, 4u, 1023u, 100001u}) {
      for (const std::size_t skew : {0u, 1u, 3u}) CompareRandom(inputs, n, skew);
      CompareRandom(inputs, n, 0, 1);  // vectors that do not lie alike
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
  EXPECT_TRUE(NotFinite());
  Compare(values, {1.0f, 1.0f, 1.0f}, 1);
  EXPECT_TRUE(NotFinite());
}

TEST_F(GpuWeightedSum, WhatIsNotFiniteIsFoundWhereverItIs) {
  constexpr std::size_t kCount = 5003;
  for (const float value :
       {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN(),
        -std::numeric_limits<float>::max()}) {
    for (const std::size_t at : {std::size_t{0}, std::size_t{1}, std::size_t{4999}, kCount - 1}) {
      for (const std::size_t skew : {0u, 1u}) {
        std::vector<std::vector<float>> values(2, std::vector<float>(kCount, 1));
        values[0][at] = values[1][at] = value;  // the largest one twice is too large
        Compare(values, {1, 1}, skew);
        EXPECT_TRUE(NotFinite()) << value << " at " << at;
        values[1][at] = 1;
        values[0][at] = std::numeric_limits<float>::max();
        Compare(values, {1, -1}, skew);
        EXPECT_FALSE(NotFinite());
      }
    }
  }
}

}  // namespace
}  // namespace lockstep::worker
