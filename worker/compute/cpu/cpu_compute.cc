#include "worker/compute/cpu/cpu_compute.h"

#include <fmt/format.h>

#include <cstdlib>
#include <cstring>
#include <utility>

#include "worker/compute/cpu/conv_kernels.h"
#include "worker/compute/cpu/gemm.h"
#include "worker/compute/cpu/kernels.h"

namespace lockstep::worker {
namespace {

class CpuCompute final : public Compute {
 public:
  CpuCompute() { cpu::PrepareBlas(); }

  std::string name() const override { return "cpu"; }
  // So many rows that matrix products run at full speed, and so few that activations stay in the
  // cache.
  Granularity granularity() const override {
    return {.dense_rows = 128, .conv_rows = 32, .columns_bytes = 512 * 1024};
  }

  void* Allocate(std::size_t bytes) override {
    const std::size_t rounded = (bytes + 63) / 64 * 64;
    void* memory = std::aligned_alloc(64, rounded == 0 ? 64 : rounded);
    if (memory == nullptr) throw DeviceError(fmt::format("no memory for {} bytes", bytes));
    std::memset(memory, 0, rounded);
    return memory;
  }
  void Free(void* memory) override { std::free(memory); }
  const float* Stage(std::span<const float> host) override { return host.data(); }

  void Gemm(Transpose ta, Transpose tb, std::size_t m, std::size_t n, std::size_t k, const float* a,
            const float* b, float beta, float* c) override {
    cpu::Gemm(ta, tb, m, n, k, a, b, beta, c);
  }
  void AddBias(std::size_t rows, std::size_t columns, const float* bias, bool relu,
               float* x) override {
    cpu::AddBias(rows, columns, bias, relu, x);
  }
  void ReluBackward(std::size_t count, const float* y, float* delta) override {
    cpu::ReluBackward(count, y, delta);
  }
  void AddColumnSums(std::size_t rows, std::size_t columns, const float* x, float* sums) override {
    cpu::AddColumnSums(rows, columns, x, sums);
  }
  void ChannelsLast(std::size_t rows, const ImageSize& image, const float* x, float* y) override {
    cpu::ChannelsLast(rows, image, x, y);
  }
  void Im2col(std::size_t rows, const ImageSize& image, const float* x, float* columns) override {
    cpu::Im2col(rows, image, x, columns);
  }
  void Col2im(std::size_t rows, const ImageSize& image, const float* columns, float* x) override {
    cpu::Col2im(rows, image, columns, x);
  }
  void BiasReluPool(std::size_t rows, const ImageSize& image, const float* x, const float* bias,
                    float* y, std::uint8_t* choice) override {
    cpu::BiasReluPool(rows, image, x, bias, y, choice);
  }
  void UnpoolBackward(std::size_t rows, const ImageSize& image, const float* dy,
                      const std::uint8_t* choice, float* dx) override {
    cpu::UnpoolBackward(rows, image, dy, choice, dx);
  }
  void PoolReluBackward(std::size_t count, const std::uint8_t* choice, float* delta) override {
    cpu::PoolReluBackward(count, choice, delta);
  }
  void Dropout(std::size_t rows, std::size_t columns, std::uint32_t threshold, std::uint32_t layer,
               std::span<const RandomStream> streams, const float* x, float* y) override {
    cpu::Dropout(rows, columns, threshold, layer, streams, x, y);
  }
  void LayerNorm(std::size_t rows, std::size_t columns, const float* x, const float* gain,
                 const float* shift, float* y, float* normalized,
                 float* inverse_deviation) override {
    cpu::LayerNorm(rows, columns, x, gain, shift, y, normalized, inverse_deviation);
  }
  void LayerNormGain(std::size_t rows, std::size_t columns, const float* dy,
                     const float* normalized, float* gain_sum) override {
    cpu::LayerNormGain(rows, columns, dy, normalized, gain_sum);
  }
  void LayerNormBackward(std::size_t rows, std::size_t columns, const float* dy, const float* gain,
                         const float* normalized, const float* inverse_deviation,
                         float* dx) override {
    cpu::LayerNormBackward(rows, columns, dy, gain, normalized, inverse_deviation, dx);
  }
  void SoftmaxLoss(std::size_t rows, std::size_t classes, const float* logits,
                   std::span<const std::uint16_t> labels, float* delta) override {
    const LossSums sums = cpu::SoftmaxLoss(rows, classes, logits, labels, delta);
    sums_.loss += sums.loss;
    sums_.correct += sums.correct;
  }
  LossSums TakeLossSums() override { return std::exchange(sums_, {}); }

 private:
  LossSums sums_;
};

}  // namespace

std::unique_ptr<Compute> MakeCpuCompute() { return std::make_unique<CpuCompute>(); }

}  // namespace lockstep::worker
