#include "worker/compute/cuda/cuda_compute.h"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>

#include "base/check.h"
#include "worker/compute/cuda/conv_kernels.h"
#include "worker/compute/cuda/cuda_memory.h"
#include "worker/compute/cuda/dense_kernels.h"
#include "worker/compute/cuda/gemm.h"
#include "worker/compute/cuda/handles.h"
#include "worker/compute/cuda/row_kernels.h"
#include "worker/compute/cuda/staging.h"

namespace lockstep::worker {
namespace {

using cuda::Check;

// Chooses the device for this thread, before the first object is made on it.
struct ChosenDevice {
  explicit ChosenDevice(int number) { Check(cudaSetDevice(number), "choosing the device"); }
};

std::string NameOf(int number, const std::string& precision) {
  cudaDeviceProp properties{};
  Check(cudaGetDeviceProperties(&properties, number), "asking for the device's name");
  return fmt::format("cuda:{} ({}, {} GiB, {})", number, properties.name,
                     properties.totalGlobalMem >> 30, precision);
}

class CudaCompute final : public Compute {
 public:
  CudaCompute(int number, const std::string& precision)
      : number_(number),
        device_(number),
        name_(NameOf(number, precision)),
        blas_(stream_, precision),
        link_(stream_) {
    sums_ = reinterpret_cast<LossSums*>(sums_memory_.Need(sizeof(LossSums)));
    Check(cudaMemsetAsync(sums_, 0, sizeof(LossSums), stream_.get()), "clearing memory");
  }
  ~CudaCompute() override { cudaDeviceSynchronize(); }

  std::string name() const override { return name_; }
  // It is large: kernels are started one by one, and a GPU is wide.
  Granularity granularity() const override {
    return {.dense_rows = 4096, .conv_rows = 512, .columns_bytes = std::size_t{256} << 20};
  }
  HostLink* host_link() override { return &link_; }
  std::shared_ptr<ExchangeMemory> MakeExchangeMemory() override {
    return cuda::MakeCudaMemory(number_);
  }

  void* Allocate(std::size_t bytes) override {
    void* memory = nullptr;
    const std::size_t some = std::max<std::size_t>(bytes, 1);
    Check(cudaMalloc(&memory, some),
          fmt::format("allocating {} MiB of its memory", (some + (1 << 20) - 1) >> 20).c_str());
    Check(cudaMemsetAsync(memory, 0, some, stream_.get()), "clearing memory");
    return memory;
  }
  void Free(void* memory) override { cudaFree(memory); }
  const float* Stage(std::span<const float> host) override { return inputs_.Stage(host, stream_); }

  void Gemm(Transpose ta, Transpose tb, std::size_t m, std::size_t n, std::size_t k, const float* a,
            const float* b, float beta, float* c) override {
    blas_.Gemm(ta, tb, m, n, k, a, b, beta, c);
  }
  void AddBias(std::size_t rows, std::size_t columns, const float* bias, bool relu,
               float* x) override {
    cuda::AddBias(stream_.get(), rows, columns, bias, relu, x);
  }
  void ReluBackward(std::size_t count, const float* y, float* delta) override {
    cuda::ReluBackward(stream_.get(), count, y, delta);
  }
  void AddColumnSums(std::size_t rows, std::size_t columns, const float* x, float* sums) override {
    cuda::AddColumnSums(stream_.get(), rows, columns, x, Scratch(rows, columns), sums);
  }
  void ChannelsLast(std::size_t rows, const ImageSize& image, const float* x, float* y) override {
    cuda::ChannelsLast(stream_.get(), rows, image, x, y);
  }
  void Im2col(std::size_t rows, const ImageSize& image, const float* x, float* columns) override {
    cuda::Im2col(stream_.get(), rows, image, x, columns);
  }
  void Col2im(std::size_t rows, const ImageSize& image, const float* columns, float* x) override {
    cuda::Col2im(stream_.get(), rows, image, columns, x);
  }
  void BiasReluPool(std::size_t rows, const ImageSize& image, const float* x, const float* bias,
                    float* y, std::uint8_t* choice) override {
    cuda::BiasReluPool(stream_.get(), rows, image, x, bias, y, choice);
  }
  void UnpoolBackward(std::size_t rows, const ImageSize& image, const float* dy,
                      const std::uint8_t* choice, float* dx) override {
    cuda::UnpoolBackward(stream_.get(), rows, image, dy, choice, dx);
  }
  void PoolReluBackward(std::size_t count, const std::uint8_t* choice, float* delta) override {
    cuda::PoolReluBackward(stream_.get(), count, choice, delta);
  }
  void Dropout(std::size_t rows, std::size_t columns, std::uint32_t threshold, std::uint32_t layer,
               std::span<const RandomStream> streams, const float* x, float* y) override {
    if (threshold == 0) {
      if (x == y) return;
      Check(cudaMemcpyAsync(y, x, rows * columns * sizeof(float), cudaMemcpyDeviceToDevice,
                            stream_.get()),
            "copying on the device");
      return;
    }
    LOCKSTEP_CHECK(streams.size() >= rows);
    const auto* on_device = reinterpret_cast<const RandomStream*>(
        small_.Bring(std::as_bytes(streams.first(rows)), stream_));
    cuda::Dropout(stream_.get(), rows, columns, threshold, layer, on_device, x, y);
  }
  void LayerNorm(std::size_t rows, std::size_t columns, const float* x, const float* gain,
                 const float* shift, float* y, float* normalized,
                 float* inverse_deviation) override {
    cuda::LayerNorm(stream_.get(), rows, columns, x, gain, shift, y, normalized, inverse_deviation);
  }
  void LayerNormGain(std::size_t rows, std::size_t columns, const float* dy,
                     const float* normalized, float* gain_sum) override {
    cuda::AddColumnSumsOfProducts(stream_.get(), rows, columns, dy, normalized,
                                  Scratch(rows, columns), gain_sum);
  }
  void LayerNormBackward(std::size_t rows, std::size_t columns, const float* dy, const float* gain,
                         const float* normalized, const float* inverse_deviation,
                         float* dx) override {
    cuda::LayerNormBackward(stream_.get(), rows, columns, dy, gain, normalized, inverse_deviation,
                            dx);
  }
  void SoftmaxLoss(std::size_t rows, std::size_t classes, const float* logits,
                   std::span<const std::uint16_t> labels, float* delta) override {
    if (rows == 0) return;
    for (const std::uint16_t label : labels.first(rows)) {
      LOCKSTEP_CHECK(label < classes, "label {} of {} classes", label, classes);
    }
    const auto* on_device = reinterpret_cast<const std::uint16_t*>(
        small_.Bring(std::as_bytes(labels.first(rows)), stream_));
    auto* losses = reinterpret_cast<cuda::RowLoss*>(losses_.Need(rows * sizeof(cuda::RowLoss)));
    cuda::SoftmaxLoss(stream_.get(), rows, classes, logits, on_device, delta, losses, sums_);
  }
  LossSums TakeLossSums() override {
    auto* taken = reinterpret_cast<LossSums*>(taken_.Need(sizeof(LossSums)));
    Check(cudaMemcpyAsync(taken, sums_, sizeof(LossSums), cudaMemcpyDeviceToHost, stream_.get()),
          "computing");
    Check(cudaMemsetAsync(sums_, 0, sizeof(LossSums), stream_.get()), "computing");
    done_.Record(stream_);
    done_.Wait();
    return *taken;
  }

 private:
  float* Scratch(std::size_t rows, std::size_t columns) {
    return reinterpret_cast<float*>(
        column_sums_.Need(cuda::ColumnSumScratch(rows, columns) * sizeof(float)));
  }

  const int number_;
  const ChosenDevice device_;  // before all objects on the device
  const std::string name_;
  cuda::Stream stream_;
  cuda::Blas blas_;
  cuda::Link link_;
  cuda::InputRing inputs_;
  cuda::SmallUploads small_;  // labels, streams of random numbers
  cuda::DeviceMemory column_sums_;
  cuda::DeviceMemory losses_;
  cuda::DeviceMemory sums_memory_;
  LossSums* sums_ = nullptr;
  cuda::PinnedMemory taken_;
  cuda::Event done_;
};

}  // namespace

Result<std::unique_ptr<Compute>> MakeCudaCompute(int number, const std::string& precision) {
  return std::unique_ptr<Compute>(std::make_unique<CudaCompute>(number, precision));
}

}  // namespace lockstep::worker
