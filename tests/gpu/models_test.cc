// The three models on the GPU against the same code on the CPU.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/gpu/device.h"
#include "tests/unit/models/setup.h"
#include "worker/models/staged_model.h"

namespace lockstep::worker {
namespace {

// How far a tensor's gradient may be off, relative to its size. Sums differ by some 1e-6; but a
// hidden unit near zero, or two pixels nearly equal, fall on the other side then and take a whole
// sample's share along. A sample that is missed altogether is well above the first.
constexpr double kFp32 = 5e-3;
constexpr double kTf32 = 0.15;
constexpr double kBf16 = 0.5;

struct Case {
  std::string name;
  ModelSpec spec;
  std::size_t samples;
};

// Numbers of samples that are no multiple of any sub-batch, more than one of each kind's.
std::vector<Case> Cases() {
  return {{"softmax", Spec("softmax", {}, {1, 5, 6}), 301},
          {"mlp", Spec("mlp", {64, 33}, {1, 9, 7}), 5000},
          {"mlp_dropout_norm", Spec("mlp", {64, 32}, {3, 4, 4}, 0.3, "layer"), 301},
          {"cnn", Spec("cnn", {6, 8, 16}, {1, 12, 10}), 700},
          {"cnn_channels", Spec("cnn", {16, 32, 64}, {3, 17, 16}, 0.2, "layer"), 90}};
}

class GpuModel : public testing::TestWithParam<Case> {
 protected:
  GpuModel() : cpu_(GetParam().spec), batch_(RandomBatch(cpu_.spec, GetParam().samples)) {}

  // The gradient of some units as one contribution, through StagedModel.
  std::vector<float> Staged(const std::string& precision, const std::vector<Batch>& units,
                            double* loss, bool collect = false) {
    std::vector<float> gradient(cpu_.parameters.size(), -7);  // outlives the device, which pins it
    const auto gpu = Gpu(precision);
    auto model = MakeModel(cpu_.spec, *gpu);
    LOCKSTEP_CHECK(model.ok(), "{}", model.error().message);
    StagedModel staged(*gpu, **model, ExchangeOn::kHost);
    const std::atomic<bool> cancelled{false};
    std::vector<std::uint32_t> final_blocks;
    *loss = 0;
    for (std::size_t i = 0; i < units.size(); ++i) {
      const bool last = i + 1 == units.size() && !collect;
      *loss += staged
                   .TrainUnit(
                       {.parameters = cpu_.parameters,
                        .version = 1,
                        .gradient = gradient,
                        .first = i == 0,
                        .last = [last] { return last; }},
                       units[i], [&](std::uint32_t block) { final_blocks.push_back(block); },
                       [&] {
                         if (i + 1 < units.size()) (*model)->Prefetch(units[i + 1]);
                       },
                       cancelled)
                   .loss_sum;
    }
    if (collect) {
      staged.Collect(gradient);
    } else {
      EXPECT_EQ(final_blocks, (*model)->finish_order());
    }
    return gradient;
  }

  void ExpectNear(const std::vector<float>& gradient, const std::vector<float>& expected,
                  double tolerance) {
    for (const NamedTensor& tensor : cpu_.model->tensors()) {
      EXPECT_LT(RelativeDistance(gradient.data() + tensor.offset, expected.data() + tensor.offset,
                                 tensor.count),
                tolerance)
          << tensor.name;
    }
  }

  ModelSetup cpu_;
  const Batch batch_;
};

TEST_P(GpuModel, GradientAndLossAreTheCpus) {
  TrainResult result;
  const std::vector<float> expected = cpu_.Gradient(batch_, &result);
  double loss = 0;
  ExpectNear(Staged("fp32", {batch_}, &loss), expected, kFp32);
  EXPECT_NEAR(loss, result.loss_sum, 1e-5 * result.loss_sum);
  ExpectNear(Staged("tf32", {batch_}, &loss), expected, kTf32);
  ExpectNear(Staged("bf16", {batch_}, &loss), expected, kBf16);
}

TEST_P(GpuModel, UnitsAddUpWithSamplesAheadOfNeed) {
  const std::vector<float> expected = cpu_.Gradient(batch_);
  const std::size_t half = batch_.samples / 2;
  const std::vector<Batch> units = {Part(cpu_.spec, batch_, 0, half),
                                    Part(cpu_.spec, batch_, half, half + 1),
                                    Part(cpu_.spec, batch_, half + 1, batch_.samples)};
  double loss = 0;
  const std::vector<float> gradient = Staged("fp32", units, &loss);
  ExpectNear(gradient, expected, kFp32);
  EXPECT_TRUE(SameBits(Staged("fp32", units, &loss), gradient)) << "other bits the second time";
  EXPECT_TRUE(SameBits(Staged("fp32", units, &loss, /*collect=*/true), gradient));
}

TEST_P(GpuModel, EvaluatesAsTheCpu) {
  const EvalResult expected = cpu_.model->Evaluate(cpu_.parameters.data(), batch_);
  const auto gpu = Gpu();
  auto model = MakeModel(cpu_.spec, *gpu);
  StagedModel staged(*gpu, **model, ExchangeOn::kHost);
  const EvalResult result = staged.Evaluate(cpu_.parameters, 1, batch_);
  EXPECT_EQ(result.samples, expected.samples);
  EXPECT_NEAR(result.loss_sum, expected.loss_sum, 1e-5 * expected.loss_sum);
  // A sample whose two best classes are equal but for rounding may go either way.
  EXPECT_NEAR(static_cast<double>(result.correct), static_cast<double>(expected.correct), 2);
}

INSTANTIATE_TEST_SUITE_P(Models, GpuModel, testing::ValuesIn(Cases()),
                         [](const auto& parameter) { return parameter.param.name; });

}  // namespace
}  // namespace lockstep::worker
