// Every operation of Compute on the GPU against the CPU. Where one thread makes an element in the
// CPU's order of additions, the bits must be the same.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <tuple>
#include <utility>
#include <vector>

#include "tests/gpu/device.h"

namespace lockstep::worker {
namespace {

struct Both {
  std::unique_ptr<Compute> cpu = MakeCpuCompute();
  std::unique_ptr<Compute> gpu = Gpu();

  // What `run` leaves on each device; it gives back the memory to compare.
  using Run = std::function<std::vector<float>(Compute&)>;
  void ExpectSameBits(const Run& run) {
    const std::vector<float> expected = run(*cpu);
    EXPECT_TRUE(SameBits(run(*gpu), expected));
  }
  void ExpectNear(const Run& run, double tolerance) {
    const std::vector<float> expected = run(*cpu);
    const std::vector<float> first = run(*gpu);
    EXPECT_LT(RelativeDistance(first, expected), tolerance);
    EXPECT_TRUE(SameBits(run(*gpu), first)) << "other bits the second time";
  }
};

const std::vector<std::pair<std::size_t, std::size_t>> kMatrices = {
    {1, 1}, {1, 10}, {3, 5}, {7, 33}, {64, 32}, {129, 257}, {1000, 16}, {5000, 3}, {33, 4099}};
const std::vector<std::pair<std::size_t, ImageSize>> kImages = {
    {1, {2, 2, 1}},   {1, {3, 3, 1}},  {2, {5, 7, 3}},    {3, {12, 10, 6}},
    {5, {28, 28, 1}}, {4, {9, 2, 16}}, {17, {14, 14, 16}}};

TEST(GpuKernels, Gemm) {
  Both both;
  for (const auto& [m, n, k] : std::vector<std::tuple<std::size_t, std::size_t, std::size_t>>{
           {1, 1, 1}, {2, 3, 4}, {5, 1, 7}, {33, 65, 17}, {128, 10, 784}, {301, 203, 97}}) {
    for (const Transpose ta : {Transpose::kNo, Transpose::kYes}) {
      for (const Transpose tb : {Transpose::kNo, Transpose::kYes}) {
        for (const float beta : {0.0f, 1.0f}) {
          SCOPED_TRACE(testing::Message() << m << "x" << n << "x" << k << " beta " << beta);
          both.ExpectNear(
              [&](Compute& compute) {
                OnDevice a(compute, RandomFloats(m * k, 1)), b(compute, RandomFloats(k * n, 2));
                OnDevice c(compute, RandomFloats(m * n, 3));
                compute.Gemm(ta, tb, m, n, k, a.get(), b.get(), beta, c.get());
                return c.Read();
              },
              1e-5);
        }
      }
    }
  }
}

TEST(GpuKernels, RoundedFactorsComeNear) {
  const auto cpu = MakeCpuCompute();
  for (const std::string precision : {"tf32", "bf16"}) {
    const auto gpu = Gpu(precision);
    const auto run = [](Compute& compute) {
      OnDevice a(compute, RandomFloats(256 * 512, 1)), b(compute, RandomFloats(512 * 256, 2));
      OnDevice c(compute, std::size_t{256 * 256});
      compute.Gemm(Transpose::kNo, Transpose::kYes, 256, 256, 512, a.get(), b.get(), 0, c.get());
      return c.Read();
    };
    EXPECT_LT(RelativeDistance(run(*gpu), run(*cpu)), 1e-2) << precision;
  }
}

TEST(GpuKernels, BiasAndRelu) {
  Both both;
  for (const auto& [rows, columns] : kMatrices) {
    SCOPED_TRACE(testing::Message() << rows << "x" << columns);
    for (const bool relu : {false, true}) {
      both.ExpectSameBits([&](Compute& compute) {
        OnDevice x(compute, RandomFloats(rows * columns, 1)),
            bias(compute, RandomFloats(columns, 2));
        compute.AddBias(rows, columns, bias.get(), relu, x.get());
        return x.Read();
      });
    }
    both.ExpectSameBits([&](Compute& compute) {
      OnDevice y(compute, RandomFloats(rows * columns, 1)),
          d(compute, RandomFloats(rows * columns, 2));
      compute.ReluBackward(rows * columns, y.get(), d.get());
      return d.Read();
    });
  }
}

TEST(GpuKernels, ColumnSums) {
  Both both;
  for (const auto& [rows, columns] : kMatrices) {
    SCOPED_TRACE(testing::Message() << rows << "x" << columns);
    both.ExpectNear(
        [&](Compute& compute) {
          OnDevice x(compute, RandomFloats(rows * columns, 1, 0, 1)),
              sums(compute, RandomFloats(columns, 2));
          compute.AddColumnSums(rows, columns, x.get(), sums.get());
          return sums.Read();
        },
        1e-5);
    both.ExpectNear(
        [&](Compute& compute) {
          OnDevice x(compute, RandomFloats(rows * columns, 1, 0, 1)),
              y(compute, RandomFloats(rows * columns, 2, 0, 1));
          OnDevice sums(compute, RandomFloats(columns, 3));
          compute.LayerNormGain(rows, columns, x.get(), y.get(), sums.get());
          return sums.Read();
        },
        1e-5);
  }
}

TEST(GpuKernels, Images) {
  Both both;
  for (const auto& [rows, image] : kImages) {
    SCOPED_TRACE(testing::Message()
                 << rows << " of " << image.height << "x" << image.width << "x" << image.channels);
    const std::size_t count = rows * image.size();
    both.ExpectSameBits([&, n = rows, size = image](Compute& compute) {
      OnDevice x(compute, RandomFloats(count, 1)), y(compute, count);
      compute.ChannelsLast(n, size, x.get(), y.get());
      return y.Read();
    });
    both.ExpectSameBits([&, n = rows, size = image](Compute& compute) {
      OnDevice x(compute, RandomFloats(count, 1)), columns(compute, 9 * count);
      compute.Im2col(n, size, x.get(), columns.get());
      return columns.Read();
    });
    both.ExpectSameBits([&, n = rows, size = image](Compute& compute) {
      OnDevice columns(compute, RandomFloats(9 * count, 1)), x(compute, count);
      compute.Col2im(n, size, columns.get(), x.get());
      return x.Read();
    });
  }
}

TEST(GpuKernels, Pooling) {
  Both both;
  for (const auto& [rows, image] : kImages) {
    SCOPED_TRACE(testing::Message()
                 << rows << " of " << image.height << "x" << image.width << "x" << image.channels);
    const std::size_t count = rows * image.size();
    const std::size_t pooled = rows * (image.height / 2) * (image.width / 2) * image.channels;
    // Few different values: there are equal ones in a window, and some windows are cut off.
    std::vector<float> x = RandomFloats(count, 1);
    for (float& value : x) value = std::round(value * 3) / 3;
    both.ExpectSameBits([&, n = rows, size = image](Compute& compute) {
      OnDevice in(compute, x), bias(compute, RandomFloats(size.channels, 2, -0.5f, 0.1f));
      OnDevice y(compute, pooled), choice(compute, (pooled + 3) / 4);
      compute.BiasReluPool(n, size, in.get(), bias.get(), y.get(), choice.bytes());
      OnDevice delta(compute, RandomFloats(pooled, 3)), dx(compute, count);
      compute.UnpoolBackward(n, size, delta.get(), choice.bytes(), dx.get());
      compute.PoolReluBackward(pooled, choice.bytes(), delta.get());
      std::vector<float> all = y.Read();
      for (const OnDevice* part : {&delta, &dx}) {
        const std::vector<float> values = part->Read();
        all.insert(all.end(), values.begin(), values.end());
      }
      return all;
    });
  }
}

TEST(GpuKernels, Dropout) {
  Both both;
  for (const auto& [rows, columns] : kMatrices) {
    std::vector<RandomStream> streams;
    for (std::size_t r = 0; r < rows; ++r) streams.emplace_back(5, 6, r);
    for (const std::uint32_t threshold : {0u, 1000u, 32768u, 65535u}) {
      SCOPED_TRACE(testing::Message() << rows << "x" << columns << " threshold " << threshold);
      both.ExpectSameBits([&, n = rows, m = columns](Compute& compute) {
        OnDevice x(compute, RandomFloats(n * m, 1)), y(compute, n * m);
        compute.Dropout(n, m, threshold, 3, streams, x.get(), y.get());
        compute.Dropout(n, m, threshold, 4, streams, y.get(), y.get());  // in place
        return y.Read();
      });
    }
  }
}

TEST(GpuKernels, LayerNorm) {
  Both both;
  for (const auto& [rows, columns] : kMatrices) {
    if (columns == 1) continue;  // nothing is left of it
    SCOPED_TRACE(testing::Message() << rows << "x" << columns);
    both.ExpectNear(
        [&, n = rows, m = columns](Compute& compute) {
          OnDevice x(compute, RandomFloats(n * m, 1)), gain(compute, RandomFloats(m, 2)),
              shift(compute, RandomFloats(m, 3));
          OnDevice y(compute, n * m), normalized(compute, n * m), inverse(compute, n);
          compute.LayerNorm(n, m, x.get(), gain.get(), shift.get(), y.get(), normalized.get(),
                            inverse.get());
          OnDevice dy(compute, RandomFloats(n * m, 4)), dx(compute, n * m);
          compute.LayerNormBackward(n, m, dy.get(), gain.get(), normalized.get(), inverse.get(),
                                    dx.get());
          std::vector<float> all = y.Read();
          for (const OnDevice* part : {&normalized, &dx}) {
            const std::vector<float> values = part->Read();
            all.insert(all.end(), values.begin(), values.end());
          }
          return all;
        },
        3e-4);
  }
}

TEST(GpuKernels, SoftmaxLoss) {
  Both both;
  for (const auto& [rows, classes] : kMatrices) {
    if (classes < 2) continue;
    SCOPED_TRACE(testing::Message() << rows << "x" << classes);
    std::vector<std::uint16_t> labels;
    for (std::size_t r = 0; r < rows; ++r)
      labels.push_back(static_cast<std::uint16_t>(r % classes));
    // Few different values: equal logits, of which the first counts.
    std::vector<float> logits = RandomFloats(rows * classes, 1, -20, 20);
    for (float& value : logits) value = std::round(value);
    const auto run = [&, n = rows, m = classes](Compute& compute, bool with_delta) {
      OnDevice x(compute, logits), delta(compute, n * m);
      compute.TakeLossSums();
      compute.SoftmaxLoss(n, m, x.get(), labels, with_delta ? delta.get() : nullptr);
      compute.SoftmaxLoss(n, m, x.get(), labels, nullptr);  // they add up
      return std::pair(compute.TakeLossSums(), delta.Read());
    };
    for (const bool with_delta : {false, true}) {
      const auto [cpu_sums, cpu_delta] = run(*both.cpu, with_delta);
      const auto [gpu_sums, gpu_delta] = run(*both.gpu, with_delta);
      EXPECT_EQ(gpu_sums.correct, cpu_sums.correct);
      EXPECT_NEAR(gpu_sums.loss, cpu_sums.loss, 1e-5 * cpu_sums.loss + 1e-5);
      EXPECT_LT(RelativeDistance(gpu_delta, cpu_delta), 1e-5);
      EXPECT_EQ(run(*both.gpu, with_delta).first.loss, gpu_sums.loss);
    }
    EXPECT_EQ(both.gpu->TakeLossSums().loss, 0);
  }
}

TEST(GpuKernels, StagedSamplesArriveInOrder) {
  const auto gpu = Gpu();
  // More than there are slots, of sizes that grow and shrink, each used after the next was staged.
  const std::vector<std::size_t> sizes = {5, 70000, 3, 70000, 200000, 1, 70000};
  std::vector<std::vector<float>> hosts;
  for (std::size_t i = 0; i < sizes.size(); ++i) hosts.push_back(RandomFloats(sizes[i], i));
  const std::vector<float> one = {1};
  const OnDevice factor(*gpu, one);
  const float* staged = gpu->Stage(hosts[0]);
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    const float* next = i + 1 < sizes.size() ? gpu->Stage(hosts[i + 1]) : nullptr;
    OnDevice copy(*gpu, sizes[i]);
    gpu->Gemm(Transpose::kNo, Transpose::kNo, sizes[i], 1, 1, staged, factor.get(), 0, copy.get());
    EXPECT_EQ(copy.Read(), hosts[i]) << i;
    staged = next;
  }
}

TEST(GpuKernels, NoMemoryIsOneLine) {
  const auto gpu = Gpu();
  try {
    gpu->Allocate(std::size_t{1} << 46);
    FAIL();
  } catch (const DeviceError& error) {
    EXPECT_NE(std::string(error.what()).find("memory"), std::string::npos);
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
  }
}

}  // namespace
}  // namespace lockstep::worker
