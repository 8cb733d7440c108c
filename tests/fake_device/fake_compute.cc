// The CPU's operations on the imitated device's memory, done when somebody waits for them.
#include <algorithm>
#include <array>
#include <cstring>
#include <deque>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "tests/fake_device/fake_device.h"
#include "worker/compute/cpu/cpu_compute.h"

namespace lockstep::worker {
namespace {

std::size_t Pooled(const ImageSize& image) {
  return (image.height / 2) * (image.width / 2) * image.channels;
}

class FakeCompute final : public Compute, public HostLink {
 public:
  FakeCompute(std::shared_ptr<FakeAddresses> addresses, std::string kind)
      : addresses_(std::move(addresses)), kind_(std::move(kind)) {}
  ~FakeCompute() override {
    for (std::byte* stage : stages_) {
      if (stage != nullptr) addresses_->Free(stage);
    }
  }

  std::string name() const override { return "a device that is imitated"; }
  Granularity granularity() const override { return cpu_->granularity(); }
  HostLink* host_link() override { return this; }
  std::shared_ptr<ExchangeMemory> MakeExchangeMemory() override {
    return MakeFakeMemory(addresses_, kind_);
  }
  void* Allocate(std::size_t bytes) override { return addresses_->Allocate(bytes); }
  void Free(void* memory) override { addresses_->Free(memory); }
  const float* Stage(std::span<const float> host) override {
    // What was asked for before the last Stage is done with this memory.
    RunUntil(asked_at_stage_);
    asked_at_stage_ = asked_;
    std::byte*& slot = stages_[next_stage_++ % stages_.size()];
    if (slot != nullptr) addresses_->Free(slot);
    slot = addresses_->Allocate(host.size_bytes());
    auto* device = reinterpret_cast<float*>(slot);
    std::copy(host.begin(), host.end(), At(device, host.size()));
    return device;
  }

  void Gemm(Transpose ta, Transpose tb, std::size_t m, std::size_t n, std::size_t k, const float* a,
            const float* b, float beta, float* c) override {
    Ask([=, this] { cpu_->Gemm(ta, tb, m, n, k, At(a, m * k), At(b, k * n), beta, At(c, m * n)); });
  }
  void AddBias(std::size_t rows, std::size_t columns, const float* bias, bool relu,
               float* x) override {
    Ask([=, this] {
      cpu_->AddBias(rows, columns, At(bias, columns), relu, At(x, rows * columns));
    });
  }
  void ReluBackward(std::size_t count, const float* y, float* delta) override {
    Ask([=, this] { cpu_->ReluBackward(count, At(y, count), At(delta, count)); });
  }
  void AddColumnSums(std::size_t rows, std::size_t columns, const float* x, float* sums) override {
    Ask([=, this] {
      cpu_->AddColumnSums(rows, columns, At(x, rows * columns), At(sums, columns));
    });
  }
  void ChannelsLast(std::size_t rows, const ImageSize& image, const float* x, float* y) override {
    const std::size_t n = rows * image.size();
    Ask([=, this] { cpu_->ChannelsLast(rows, image, At(x, n), At(y, n)); });
  }
  void Im2col(std::size_t rows, const ImageSize& image, const float* x, float* columns) override {
    const std::size_t n = rows * image.size();
    Ask([=, this] { cpu_->Im2col(rows, image, At(x, n), At(columns, 9 * n)); });
  }
  void Col2im(std::size_t rows, const ImageSize& image, const float* columns, float* x) override {
    const std::size_t n = rows * image.size();
    Ask([=, this] { cpu_->Col2im(rows, image, At(columns, 9 * n), At(x, n)); });
  }
  void BiasReluPool(std::size_t rows, const ImageSize& image, const float* x, const float* bias,
                    float* y, std::uint8_t* choice) override {
    const std::size_t pooled = rows * Pooled(image);
    Ask([=, this] {
      cpu_->BiasReluPool(rows, image, At(x, rows * image.size()), At(bias, image.channels),
                         At(y, pooled), At(choice, pooled));
    });
  }
  void UnpoolBackward(std::size_t rows, const ImageSize& image, const float* dy,
                      const std::uint8_t* choice, float* dx) override {
    const std::size_t pooled = rows * Pooled(image);
    Ask([=, this] {
      cpu_->UnpoolBackward(rows, image, At(dy, pooled), At(choice, pooled),
                           At(dx, rows * image.size()));
    });
  }
  void PoolReluBackward(std::size_t count, const std::uint8_t* choice, float* delta) override {
    Ask([=, this] { cpu_->PoolReluBackward(count, At(choice, count), At(delta, count)); });
  }
  void Dropout(std::size_t rows, std::size_t columns, std::uint32_t threshold, std::uint32_t layer,
               std::span<const RandomStream> streams, const float* x, float* y) override {
    Ask([=, this, kept = std::vector(streams.begin(), streams.end())] {
      cpu_->Dropout(rows, columns, threshold, layer, kept, At(x, rows * columns),
                    At(y, rows * columns));
    });
  }
  void LayerNorm(std::size_t rows, std::size_t columns, const float* x, const float* gain,
                 const float* shift, float* y, float* normalized,
                 float* inverse_deviation) override {
    const std::size_t n = rows * columns;
    Ask([=, this] {
      cpu_->LayerNorm(rows, columns, At(x, n), At(gain, columns), At(shift, columns), At(y, n),
                      At(normalized, n), At(inverse_deviation, rows));
    });
  }
  void LayerNormGain(std::size_t rows, std::size_t columns, const float* dy,
                     const float* normalized, float* gain_sum) override {
    const std::size_t n = rows * columns;
    Ask([=, this] {
      cpu_->LayerNormGain(rows, columns, At(dy, n), At(normalized, n), At(gain_sum, columns));
    });
  }
  void LayerNormBackward(std::size_t rows, std::size_t columns, const float* dy, const float* gain,
                         const float* normalized, const float* inverse_deviation,
                         float* dx) override {
    const std::size_t n = rows * columns;
    Ask([=, this] {
      cpu_->LayerNormBackward(rows, columns, At(dy, n), At(gain, columns), At(normalized, n),
                              At(inverse_deviation, rows), At(dx, n));
    });
  }
  void SoftmaxLoss(std::size_t rows, std::size_t classes, const float* logits,
                   std::span<const std::uint16_t> labels, float* delta) override {
    Ask([=, this, kept = std::vector(labels.begin(), labels.end())] {
      cpu_->SoftmaxLoss(rows, classes, At(logits, rows * classes), kept, At(delta, rows * classes));
    });
  }
  LossSums TakeLossSums() override {
    RunUntil(asked_);
    return cpu_->TakeLossSums();
  }

  void Pin(std::span<const float> /*host*/) override {}
  void Upload(std::span<const float> host, float* device) override {
    Ask([=, this] { std::copy(host.begin(), host.end(), At(device, host.size())); });
  }
  void Zero(float* device, std::size_t count) override {
    Ask([=, this] { std::fill_n(At(device, count), count, 0.0f); });
  }
  Ticket Download(const float* device, std::span<float> host) override {
    const Ticket ticket = Mark();
    downloads_[ticket] = [=, this] {
      std::copy_n(At(device, host.size()), host.size(), host.begin());
    };
    return ticket;
  }
  void Wait(Ticket ticket) override {
    RunUntil(marks_.at(ticket));
    marks_.erase(ticket);
    if (const auto download = downloads_.find(ticket); download != downloads_.end()) {
      download->second();
      downloads_.erase(download);
    }
  }
  Ticket Mark() override {
    marks_[next_ticket_] = asked_;
    return next_ticket_++;
  }

 private:
  template <class T>
  T* At(const T* device, std::size_t count) const {
    return addresses_->Host(device, count);
  }
  void Ask(std::function<void()> operation) {
    operations_.push_back(std::move(operation));
    ++asked_;
  }
  void RunUntil(std::uint64_t count) {
    for (; done_ < count; ++done_) {
      operations_.front()();
      operations_.pop_front();
    }
  }

  const std::shared_ptr<FakeAddresses> addresses_;
  const std::string kind_;
  const std::unique_ptr<Compute> cpu_ = MakeCpuCompute();
  std::deque<std::function<void()>> operations_;
  std::uint64_t asked_ = 0;
  std::uint64_t done_ = 0;
  std::map<Ticket, std::uint64_t> marks_;
  std::map<Ticket, std::function<void()>> downloads_;
  Ticket next_ticket_ = 0;
  std::array<std::byte*, 3> stages_{};
  std::size_t next_stage_ = 0;
  std::uint64_t asked_at_stage_ = 0;
};

}  // namespace

std::unique_ptr<Compute> MakeFakeCompute(std::shared_ptr<FakeAddresses> addresses,
                                         const std::string& kind) {
  return std::make_unique<FakeCompute>(std::move(addresses), kind);
}

}  // namespace lockstep::worker
