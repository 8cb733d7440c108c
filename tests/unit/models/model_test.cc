#include "worker/models/model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include "base/permutation.h"
#include "tests/unit/models/setup.h"
#include "worker/data/dataset.h"
#include "worker/optimizer/optimizer.h"

namespace lockstep::worker {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

const ModelSpec kMlp = Spec("mlp", {24, 12}, {1, 5, 6}, 0.3);
const ModelSpec kCnn = Spec("cnn", {6, 8, 16}, {1, 12, 10}, 0.3);

class CallbackObserver : public BackwardObserver {
 public:
  explicit CallbackObserver(std::function<void(std::uint32_t)> callback)
      : callback_(std::move(callback)) {}
  void BlockFinal(std::uint32_t block) override {
    order.push_back(block);
    callback_(block);
  }
  std::vector<std::uint32_t> order;

 private:
  std::function<void(std::uint32_t)> callback_;
};

class BothModels : public ::testing::TestWithParam<ModelSpec> {};

TEST_P(BothModels, AUnitsGradientDoesNotDependOnWhatWasComputedBefore) {
  ModelSetup fresh(GetParam());
  ModelSetup used(GetParam());
  const Batch batch = RandomBatch(fresh.spec, 21);
  used.Gradient(RandomBatch(used.spec, 50, 1));
  EXPECT_EQ(fresh.Gradient(batch), used.Gradient(batch));
}

TEST_P(BothModels, SamplesDrawTheSameInWhateverUnitTheyAre) {
  ModelSetup setup(GetParam());
  const Batch batch = RandomBatch(setup.spec, 30);
  const std::vector<float> whole = setup.Gradient(batch);
  std::vector<float> sum(whole.size());
  for (const auto& [from, to] : {std::pair{20, 30}, {0, 13}, {13, 20}}) {
    const std::vector<float> part = setup.Gradient(
        Part(setup.spec, batch, static_cast<std::size_t>(from), static_cast<std::size_t>(to)));
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += part[i];
  }
  for (std::size_t i = 0; i < sum.size(); ++i) ASSERT_NEAR(sum[i], whole[i], 1e-4f) << i;
  Batch moved = batch;
  moved.first_position += 1;
  EXPECT_NE(setup.Gradient(moved), whole) << "the position makes no difference: is dropout on?";
}

TEST_P(BothModels, ALargeUnitIsTheSumOfItsSubBatches) {
  ModelSetup setup(GetParam());
  const Batch batch = RandomBatch(setup.spec, 300);
  const std::vector<float> whole = setup.Gradient(batch);
  std::vector<float> sum(whole.size());
  const std::atomic<bool> cancelled{false};
  // 128 is a multiple of every model's sub-batch: the same additions in the same order.
  for (const auto& [from, to] : {std::pair{0, 128}, {128, 256}, {256, 300}}) {
    setup.model->TrainUnit(
        setup.parameters.data(), sum.data(),
        Part(setup.spec, batch, static_cast<std::size_t>(from), static_cast<std::size_t>(to)),
        nullptr, cancelled);
  }
  EXPECT_EQ(std::memcmp(whole.data(), sum.data(), sum.size() * sizeof(float)), 0);
}

TEST_P(BothModels, ReportsEachBlockOnceWhenItsGradientIsFinal) {
  ModelSetup setup(GetParam());
  const Batch batch = RandomBatch(setup.spec, 200);
  std::vector<float> gradient(setup.parameters.size());
  std::vector<float> seen(setup.parameters.size(), NAN);
  CallbackObserver observer([&](std::uint32_t index) {
    const ParameterBlock& block = setup.model->blocks()[index];
    std::copy_n(gradient.begin() + static_cast<std::ptrdiff_t>(block.offset), block.count,
                seen.begin() + static_cast<std::ptrdiff_t>(block.offset));
  });
  const std::atomic<bool> cancelled{false};
  setup.model->TrainUnit(setup.parameters.data(), gradient.data(), batch, &observer, cancelled);
  EXPECT_EQ(observer.order, setup.model->finish_order());
  EXPECT_EQ(seen, gradient);
}

TEST_P(BothModels, AnEmptyUnitAddsNothingAndReportsAll) {
  ModelSetup setup(GetParam());
  std::vector<float> gradient(setup.parameters.size(), 7.0f);
  CallbackObserver observer([](std::uint32_t) {});
  const std::atomic<bool> cancelled{false};
  const TrainResult result = setup.model->TrainUnit(
      setup.parameters.data(), gradient.data(), RandomBatch(setup.spec, 0), &observer, cancelled);
  EXPECT_EQ(result.samples, 0u);
  EXPECT_EQ(observer.order, setup.model->finish_order());
  EXPECT_EQ(gradient, std::vector<float>(gradient.size(), 7.0f));
}

TEST_P(BothModels, StopsWhenCancelled) {
  ModelSetup setup(GetParam());
  const Batch batch = RandomBatch(setup.spec, 40);
  std::vector<float> gradient(setup.parameters.size());
  std::atomic<bool> cancelled{true};
  CallbackObserver none([](std::uint32_t) {});
  const TrainResult at_once =
      setup.model->TrainUnit(setup.parameters.data(), gradient.data(), batch, &none, cancelled);
  EXPECT_TRUE(at_once.cancelled);
  EXPECT_THAT(none.order, IsEmpty());
  EXPECT_EQ(gradient, std::vector<float>(gradient.size()));

  cancelled = false;
  CallbackObserver one([&](std::uint32_t) { cancelled = true; });
  const TrainResult midway =
      setup.model->TrainUnit(setup.parameters.data(), gradient.data(), batch, &one, cancelled);
  EXPECT_TRUE(midway.cancelled);
  EXPECT_THAT(one.order, ElementsAre(setup.model->finish_order().front()));

  // The next unit is none the worse for it.
  EXPECT_EQ(setup.Gradient(batch), ModelSetup(GetParam()).Gradient(batch));
}

TEST_P(BothModels, TensorsAndBlocksCoverTheParameters) {
  ModelSetup setup(GetParam());
  std::uint64_t end = 0;
  for (const NamedTensor& tensor : setup.model->tensors()) {
    EXPECT_EQ(tensor.offset, end) << tensor.name;
    EXPECT_EQ(tensor.count, std::accumulate(tensor.shape.begin(), tensor.shape.end(),
                                            std::uint64_t{1}, std::multiplies<>()));
    end += tensor.count;
  }
  EXPECT_EQ(end, setup.model->parameter_count());
  end = 0;
  for (const ParameterBlock& block : setup.model->blocks()) {
    EXPECT_EQ(block.offset, end);
    end += block.count;
  }
  EXPECT_EQ(end, setup.model->parameter_count());
  std::vector<std::uint32_t> order = setup.model->finish_order();
  EXPECT_EQ(order.back(), 0u) << "the backward pass ends at the first layer";
  std::sort(order.begin(), order.end());
  for (std::uint32_t i = 0; i < order.size(); ++i) EXPECT_EQ(order[i], i);
}

std::string NameOf(const ::testing::TestParamInfo<ModelSpec>& info) {
  return info.param.config.name;
}
INSTANTIATE_TEST_SUITE_P(Models, BothModels, ::testing::Values(kMlp, kCnn), NameOf);

TEST(Model, InitialParametersAreTheSameBitsEverywhere) {
  ModelSetup setup(kCnn);
  std::vector<float> values(setup.model->parameter_count());
  setup.model->InitParameters(42, values);
  std::uint64_t hash = 0;
  for (float value : values) {
    std::uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    hash = Mix64(hash ^ bits);
  }
  EXPECT_EQ(hash, 18303317814670209204ull);  // seen on one machine, asserted on all
  std::vector<float> other(values.size());
  setup.model->InitParameters(43, other);
  EXPECT_NE(values, other);
}

TEST(Model, InitialWeightsFollowTheFanIn) {
  ModelSetup setup(Spec("mlp", {64, 12}, {1, 20, 20}));
  std::vector<float> values(setup.model->parameter_count());
  setup.model->InitParameters(1, values);
  const NamedTensor& weight = setup.model->tensors()[0];
  const auto [low, high] = std::minmax_element(values.begin(), values.begin() + 64 * 400);
  const float limit = std::sqrt(6.0f / 400.0f);
  EXPECT_EQ(weight.name, "hidden1.weight");
  EXPECT_THAT(weight.shape, ElementsAre(64, 400));
  EXPECT_LE(*high, limit);
  EXPECT_GE(*low, -limit);
  EXPECT_GT(*high, 0.95f * limit);
  const NamedTensor& bias = setup.model->tensors()[1];
  for (std::uint64_t i = 0; i < bias.count; ++i) EXPECT_EQ(values[bias.offset + i], 0.0f);
}

// Ten passes over a small synthetic set; the share of the test split that is right afterwards.
double AccuracyAfterTraining(const std::string& name, std::vector<std::uint32_t> widths) {
  DataSection data;
  data.format = "synthetic";
  data.synthetic_train = 1024;
  data.synthetic_test = 512;
  auto opened = OpenDataset(data, 5);
  LOCKSTEP_CHECK(opened.ok());
  const Dataset& dataset = **opened;
  ModelSpec spec = Spec(name, std::move(widths), dataset.shape());
  spec.classes = dataset.classes();
  const auto compute = MakeCpuCompute();
  const auto model = *MakeModel(spec, *compute);
  const auto optimizer = *MakeOptimizer(OptimizerSection());
  std::vector<float> parameters(model->parameter_count());
  std::vector<float> momentum(parameters.size());
  std::vector<float> gradient(parameters.size());
  model->InitParameters(1, parameters);
  const std::atomic<bool> cancelled{false};
  Batch batch;
  UpdateScalars scalars;
  scalars.scale = 1.0f / 64;
  scalars.learning_rate = 0.05f;
  for (std::uint32_t epoch = 0; epoch < 10; ++epoch) {
    const auto order = EpochOrder(1, Epoch(epoch), data.synthetic_train);
    for (std::uint32_t from = 0; from < data.synthetic_train; from += 64) {
      dataset.FillBatch(Split::kTrain, std::span(order).subspan(from, 64), batch);
      std::fill(gradient.begin(), gradient.end(), 0.0f);
      model->TrainUnit(parameters.data(), gradient.data(), batch, nullptr, cancelled);
      float* state = momentum.data();
      optimizer->Apply(scalars, {.first = 0,
                                 .count = parameters.size(),
                                 .parameters = parameters.data(),
                                 .state = {&state, 1},
                                 .gradient_sum = gradient.data()});
    }
  }
  std::vector<std::uint32_t> all(data.synthetic_test);
  std::iota(all.begin(), all.end(), 0u);
  dataset.FillBatch(Split::kTest, all, batch);
  const EvalResult result = model->Evaluate(parameters.data(), batch);
  return static_cast<double>(result.correct) / static_cast<double>(result.samples);
}

TEST(Model, EveryModelLearnsTheSyntheticSet) {
  EXPECT_GT(AccuracyAfterTraining("softmax", {}), 0.9);
  EXPECT_GT(AccuracyAfterTraining("mlp", {64}), 0.9);
  EXPECT_GT(AccuracyAfterTraining("cnn", {8, 32}), 0.8);
}

}  // namespace
}  // namespace lockstep::worker
