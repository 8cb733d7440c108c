// Each model's gradient against finite differences of the double-precision reference.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "tests/unit/models/reference.h"
#include "tests/unit/models/setup.h"

namespace lockstep::worker {
namespace {

class EveryModel : public ::testing::TestWithParam<ModelSpec> {};

TEST_P(EveryModel, LossIsTheReferences) {
  ModelSetup setup(GetParam());
  const Batch batch = RandomBatch(setup.spec, 7);
  const std::vector<double> parameters(setup.parameters.begin(), setup.parameters.end());
  TrainResult trained;
  setup.Gradient(batch, &trained);
  EXPECT_EQ(trained.samples, 7u);
  EXPECT_FALSE(trained.cancelled);
  EXPECT_NEAR(trained.loss_sum, reference::Loss(setup.spec, parameters, batch, true).loss_sum,
              2e-4);
  const EvalResult evaluated = setup.model->Evaluate(setup.parameters.data(), batch);
  const auto expected = reference::Loss(setup.spec, parameters, batch, false);
  EXPECT_NEAR(evaluated.loss_sum, expected.loss_sum, 2e-4);
  EXPECT_EQ(evaluated.correct, expected.correct);
  EXPECT_EQ(evaluated.samples, 7u);
}

TEST_P(EveryModel, GradientIsTheFiniteDifference) {
  constexpr double kStep = 1e-6;
  ModelSetup setup(GetParam());
  const Batch batch = RandomBatch(setup.spec, 3);
  const std::vector<float> gradient = setup.Gradient(batch);
  std::vector<double> parameters(setup.parameters.begin(), setup.parameters.end());
  for (const NamedTensor& tensor : setup.model->tensors()) {
    // Every element of a small tensor, some of a large one.
    const std::uint64_t stride = std::max<std::uint64_t>(1, tensor.count / 61);
    bool seen = false;
    for (std::uint64_t i = tensor.offset; i < tensor.offset + tensor.count; i += stride) {
      const double value = parameters[i];
      parameters[i] = value + kStep;
      const double above = reference::Loss(setup.spec, parameters, batch, true).loss_sum;
      parameters[i] = value - kStep;
      const double below = reference::Loss(setup.spec, parameters, batch, true).loss_sum;
      parameters[i] = value;
      const double slope = (above - below) / (2 * kStep);
      seen |= std::abs(slope) > 1e-3;
      ASSERT_NEAR(static_cast<double>(gradient[i]), slope, 1e-4 + 1e-4 * std::abs(slope))
          << tensor.name << "[" << i - tensor.offset << "]";
    }
    EXPECT_TRUE(seen) << tensor.name << ": no gradient to compare";
  }
}

std::string NameOf(const ::testing::TestParamInfo<ModelSpec>& info) {
  return info.param.config.name + std::to_string(info.index);
}

INSTANTIATE_TEST_SUITE_P(Models, EveryModel,
                         ::testing::Values(Spec("softmax", {}, {1, 3, 4}),
                                           Spec("mlp", {11, 6}, {1, 4, 5}),
                                           Spec("mlp", {11, 6}, {1, 4, 5}, 0.4),
                                           Spec("mlp", {9}, {2, 3, 3}, 0.25, "layer"),
                                           Spec("cnn", {4, 9}, {1, 6, 7}),
                                           Spec("cnn", {16, 8, 9}, {3, 9, 8}, 0.3),
                                           Spec("cnn", {3, 5, 8}, {2, 8, 9}, 0, "layer"),
                                           Spec("cnn", {4, 6}, {1, 3, 2})),
                         NameOf);

}  // namespace
}  // namespace lockstep::worker
