// StagedModel on a device that is imitated: memory of its own, copies that happen as late as they
// may. Whoever looks before he has waited finds what was there before.
#include "worker/models/staged_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tests/unit/models/setup.h"

namespace lockstep::worker {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

// Computes as the CPU does, in memory that the tests do not touch otherwise.
class FakeDevice final : public Compute, public HostLink {
 public:
  std::string name() const override { return "fake"; }
  Granularity granularity() const override {
    return {.dense_rows = 4, .conv_rows = 4, .columns_bytes = 4096};
  }
  HostLink* host_link() override { return this; }
  void* Allocate(std::size_t bytes) override { return cpu_->Allocate(bytes); }
  void Free(void* memory) override { cpu_->Free(memory); }
  const float* Stage(std::span<const float> host) override {
    ++staged;
    std::vector<float>& slot = stages_[next_stage_++ % stages_.size()];
    slot.assign(host.begin(), host.end());
    return slot.data();
  }

  void Gemm(Transpose ta, Transpose tb, std::size_t m, std::size_t n, std::size_t k, const float* a,
            const float* b, float beta, float* c) override {
    cpu_->Gemm(ta, tb, m, n, k, a, b, beta, c);
  }
  void AddBias(std::size_t rows, std::size_t columns, const float* bias, bool relu,
               float* x) override {
    cpu_->AddBias(rows, columns, bias, relu, x);
  }
  void ReluBackward(std::size_t count, const float* y, float* delta) override {
    cpu_->ReluBackward(count, y, delta);
  }
  void AddColumnSums(std::size_t rows, std::size_t columns, const float* x, float* sums) override {
    cpu_->AddColumnSums(rows, columns, x, sums);
  }
  void ChannelsLast(std::size_t rows, const ImageSize& image, const float* x, float* y) override {
    cpu_->ChannelsLast(rows, image, x, y);
  }
  void Im2col(std::size_t rows, const ImageSize& image, const float* x, float* columns) override {
    cpu_->Im2col(rows, image, x, columns);
  }
  void Col2im(std::size_t rows, const ImageSize& image, const float* columns, float* x) override {
    cpu_->Col2im(rows, image, columns, x);
  }
  void BiasReluPool(std::size_t rows, const ImageSize& image, const float* x, const float* bias,
                    float* y, std::uint8_t* choice) override {
    cpu_->BiasReluPool(rows, image, x, bias, y, choice);
  }
  void UnpoolBackward(std::size_t rows, const ImageSize& image, const float* dy,
                      const std::uint8_t* choice, float* dx) override {
    cpu_->UnpoolBackward(rows, image, dy, choice, dx);
  }
  void PoolReluBackward(std::size_t count, const std::uint8_t* choice, float* delta) override {
    cpu_->PoolReluBackward(count, choice, delta);
  }
  void Dropout(std::size_t rows, std::size_t columns, std::uint32_t threshold, std::uint32_t layer,
               std::span<const RandomStream> streams, const float* x, float* y) override {
    cpu_->Dropout(rows, columns, threshold, layer, streams, x, y);
  }
  void LayerNorm(std::size_t rows, std::size_t columns, const float* x, const float* gain,
                 const float* shift, float* y, float* normalized,
                 float* inverse_deviation) override {
    cpu_->LayerNorm(rows, columns, x, gain, shift, y, normalized, inverse_deviation);
  }
  void LayerNormGain(std::size_t rows, std::size_t columns, const float* dy,
                     const float* normalized, float* gain_sum) override {
    cpu_->LayerNormGain(rows, columns, dy, normalized, gain_sum);
  }
  void LayerNormBackward(std::size_t rows, std::size_t columns, const float* dy, const float* gain,
                         const float* normalized, const float* inverse_deviation,
                         float* dx) override {
    cpu_->LayerNormBackward(rows, columns, dy, gain, normalized, inverse_deviation, dx);
  }
  void SoftmaxLoss(std::size_t rows, std::size_t classes, const float* logits,
                   std::span<const std::uint16_t> labels, float* delta) override {
    cpu_->SoftmaxLoss(rows, classes, logits, labels, delta);
  }
  LossSums TakeLossSums() override {
    story.push_back("done");
    return cpu_->TakeLossSums();
  }

  // As a driver does, it goes on with the pages that were pinned, whatever is mapped there now.
  void Pin(std::span<const float> host) override { pinned_.try_emplace(host.data(), pages); }
  void Upload(std::span<const float> host, float* device) override {
    story.push_back("upload");
    const auto pinned = pinned_.find(host.data());
    ASSERT_TRUE(pinned == pinned_.end() || pinned->second == pages) << "pages that are gone";
    std::copy(host.begin(), host.end(), device);
  }
  void Zero(float* device, std::size_t count) override {
    story.push_back("zero");
    std::fill_n(device, count, 0.0f);
  }
  Ticket Download(const float* device, std::span<float> host) override {
    story.push_back("download");
    if (cancel_at_download != nullptr) *cancel_at_download = true;
    const Ticket ticket = next_ticket_++;
    downloads_[ticket] = {std::vector<float>(device, device + host.size()), host};
    return ticket;
  }
  void Wait(Ticket ticket) override {
    const auto found = downloads_.find(ticket);
    ASSERT_NE(found, downloads_.end()) << "waited for twice";
    const auto& [values, host] = found->second;
    std::copy(values.begin(), values.end(), host.begin());
    downloads_.erase(found);
    story.push_back("arrived");
  }
  Ticket Mark() override {
    story.push_back("mark");
    const Ticket ticket = next_ticket_++;
    downloads_[ticket] = {};
    return ticket;
  }
  std::size_t under_way() const { return downloads_.size(); }

  std::vector<std::string> story;
  int pages = 0;  // that lie under addresses now
  int staged = 0;
  std::atomic<bool>* cancel_at_download = nullptr;

 private:
  std::unique_ptr<Compute> cpu_ = MakeCpuCompute();
  std::map<const float*, int> pinned_;  // with the pages of then
  std::array<std::vector<float>, 3> stages_;
  std::size_t next_stage_ = 0;
  Ticket next_ticket_ = 0;
  std::map<Ticket, std::pair<std::vector<float>, std::span<float>>> downloads_;
};

class StagedModelTest : public testing::Test {
 protected:
  StagedModelTest() {
    auto made = MakeModel(spec_, device_);
    LOCKSTEP_CHECK(made.ok(), "{}", made.error().message);
    model_ = *std::move(made);
    parameters_.resize(model_->parameter_count());
    model_->InitParameters(1, parameters_);
    gradient_.assign(parameters_.size(), -7);
    staged_ = std::make_unique<StagedModel>(device_, *model_, ExchangeOn::kHost);
  }

  StagedModel::Unit Unit(bool first, bool last, std::uint32_t version = 1) {
    return {.parameters = parameters_,
            .version = version,
            .gradient = gradient_,
            .first = first,
            .last = [last] { return last; }};
  }
  TrainResult Train(const StagedModel::Unit& unit, const Batch& batch) {
    return staged_->TrainUnit(
        unit, batch,
        [&](std::uint32_t block) {
          final_blocks_.push_back(block);
          // What the observer may read: this block and those before.
          const ParameterBlock& range = model_->blocks()[block];
          for (std::uint64_t i = range.offset; i < range.offset + range.count; ++i) {
            ASSERT_NE(gradient_[i], -7) << "block " << block << " is not there";
          }
          device_.story.push_back("final");
        },
        [&] { device_.story.push_back("meanwhile"); }, cancelled_);
  }
  // What one model computes in plain memory, without a stage between.
  std::vector<float> Expected(std::initializer_list<const Batch*> batches) {
    auto plain = MakeModel(spec_, device_);
    std::vector<float> sum(parameters_.size());
    for (const Batch* batch : batches) {
      static_cast<void>(
          (*plain)->TrainUnit(parameters_.data(), sum.data(), *batch, nullptr, cancelled_));
    }
    device_.story.clear();
    return sum;
  }

  const ModelSpec spec_ = Spec("mlp", {6}, {1, 1, 8});
  FakeDevice device_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<StagedModel> staged_;
  std::vector<float> parameters_;
  std::vector<float> gradient_;
  std::vector<std::uint32_t> final_blocks_;
  std::atomic<bool> cancelled_{false};
};

TEST_F(StagedModelTest, SumsStayOnTheDeviceUntilTheLastUnit) {
  const Batch a = RandomBatch(spec_, 6, 1);
  const Batch b = RandomBatch(spec_, 6, 2);
  const std::vector<float> expected = Expected({&a, &b});

  Train(Unit(true, false), a);
  EXPECT_THAT(device_.story, ElementsAre("upload", "zero", "meanwhile", "done"));
  EXPECT_EQ(gradient_, std::vector<float>(gradient_.size(), -7));
  EXPECT_THAT(final_blocks_, IsEmpty());

  device_.story.clear();
  const TrainResult result = Train(Unit(false, true), b);
  EXPECT_EQ(result.samples, 6u);
  EXPECT_GT(result.loss_sum, 0);
  EXPECT_EQ(gradient_, expected);
  EXPECT_EQ(final_blocks_, model_->finish_order());
  // Blocks are told of before it is waited for the whole unit, and samples prepared before that.
  EXPECT_THAT(device_.story, ElementsAre("download", "download", "meanwhile", "arrived", "final",
                                         "arrived", "final", "done"));
}

TEST_F(StagedModelTest, ParametersTravelWhenTheyHaveChanged) {
  const Batch batch = RandomBatch(spec_, 4);
  Train(Unit(true, true, 1), batch);
  parameters_[0] += 1;
  Train(Unit(true, true, 1), batch);  // nobody said so
  const std::vector<float> before = gradient_;
  Train(Unit(true, true, 2), batch);
  EXPECT_NE(gradient_, before);
  EXPECT_EQ(std::count(device_.story.begin(), device_.story.end(), "upload"), 2);
  EXPECT_EQ(gradient_, Expected({&batch}));

  // Evaluated ones are others, under versions of their own.
  static_cast<void>(staged_->Evaluate(parameters_, 2, batch));
  static_cast<void>(staged_->Evaluate(parameters_, 2, batch));
  EXPECT_EQ(std::count(device_.story.begin(), device_.story.end(), "upload"), 1);
  Train(Unit(true, true, 2), batch);
  EXPECT_EQ(std::count(device_.story.begin(), device_.story.end(), "upload"), 1);
}

// A snapshot's memory goes when the next one is elsewhere, and a later one may come to lie there.
TEST_F(StagedModelTest, EvaluatesWhatLiesAtAnAddressNow) {
  const Batch batch = RandomBatch(spec_, 4);
  Train(Unit(true, true), batch);
  std::vector<float> snapshot = parameters_;
  static_cast<void>(staged_->Evaluate(snapshot, 1, batch));
  ++device_.pages;  // unmapped, and mapped anew at the same address
  snapshot[0] += 1;
  const double loss = staged_->Evaluate(snapshot, 2, batch).loss_sum;
  EXPECT_EQ(loss, model_->Evaluate(snapshot.data(), batch).loss_sum);
}

TEST_F(StagedModelTest, WorksInPlaceWhereTheExchangeIsOnTheDevice) {
  const Batch a = RandomBatch(spec_, 6, 1);
  const Batch b = RandomBatch(spec_, 6, 2);
  const std::vector<float> expected = Expected({&a, &b});
  staged_ = std::make_unique<StagedModel>(device_, *model_, ExchangeOn::kDevice);
  Train(Unit(true, false), a);
  EXPECT_THAT(final_blocks_, IsEmpty());
  EXPECT_THAT(device_.story, ElementsAre("zero", "meanwhile", "done", "mark", "arrived"));
  device_.story.clear();
  Train(Unit(false, true), b);
  EXPECT_EQ(gradient_, expected);
  EXPECT_EQ(final_blocks_, model_->finish_order());
  EXPECT_THAT(device_.story, ElementsAre("mark", "mark", "meanwhile", "arrived", "final", "arrived",
                                         "final", "done", "mark", "arrived"));
  EXPECT_EQ(device_.under_way(), 0u);
  const EvalResult plain = model_->Evaluate(parameters_.data(), a);
  EXPECT_EQ(staged_->Evaluate(parameters_, 1, a).loss_sum, plain.loss_sum);
}

TEST_F(StagedModelTest, TheSumIsCollectedWhenTheRestWasTakenBack) {
  const Batch batch = RandomBatch(spec_, 5);
  const std::vector<float> expected = Expected({&batch});
  Train(Unit(true, false), batch);
  staged_->Collect(gradient_);
  EXPECT_EQ(gradient_, expected);
  EXPECT_EQ(device_.under_way(), 0u);
}

TEST_F(StagedModelTest, ACancelledUnitLeavesNothingUnderWay) {
  const Batch batch = RandomBatch(spec_, 12);
  cancelled_ = true;
  EXPECT_TRUE(Train(Unit(true, true), batch).cancelled);
  EXPECT_EQ(device_.under_way(), 0u);
  EXPECT_THAT(final_blocks_, IsEmpty());
  cancelled_ = false;
  device_.cancel_at_download = &cancelled_;  // in the middle of the backward pass
  EXPECT_TRUE(Train(Unit(true, true), batch).cancelled);
  EXPECT_EQ(device_.under_way(), 0u);
  EXPECT_THAT(final_blocks_, IsEmpty());
  device_.cancel_at_download = nullptr;
  // The sums of losses that were begun do not count for the next unit.
  cancelled_ = false;
  const double loss = Train(Unit(true, true), batch).loss_sum;
  EXPECT_EQ(Train(Unit(true, true), batch).loss_sum, loss);
}

TEST_F(StagedModelTest, PrefetchedSamplesAreNotStagedAgain) {
  const Batch batch = RandomBatch(spec_, 6);  // two sub-batches
  const std::vector<float> expected = Expected({&batch});
  device_.staged = 0;
  model_->Prefetch(batch);
  EXPECT_EQ(device_.staged, 1);
  Train(Unit(true, true), batch);
  EXPECT_EQ(device_.staged, 2);
  EXPECT_EQ(gradient_, expected);

  // Not for a batch at another position, though it lies at the same place.
  Batch other = batch;
  model_->Prefetch(other);
  other.inputs[0] += 1;
  other.first_position += 100;
  device_.staged = 0;
  Train(Unit(true, true), other);
  EXPECT_EQ(device_.staged, 2);
  EXPECT_EQ(gradient_, Expected({&other}));
}

}  // namespace
}  // namespace lockstep::worker
