#include "worker/optimizer/optimizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "base/random.h"
#include "worker/optimizer/grouped.h"

namespace lockstep::worker {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr std::size_t kCount = 1003;  // no multiple of any vector's length
constexpr int kUpdates = 7;

OptimizerSection Section(const std::string& name) {
  OptimizerSection section;
  section.name = name;
  section.weight_decay = 0.01;
  section.epsilon = name == "rmsprop" ? 1e-3 : 1e-8;
  return section;
}

std::unique_ptr<Optimizer> Make(const OptimizerSection& section) {
  auto optimizer = MakeOptimizer(section);
  LOCKSTEP_CHECK(optimizer.ok());
  return *std::move(optimizer);
}

UpdateScalars ScalarsOf(int update) {
  UpdateScalars scalars;
  scalars.scale = 1.0f / 64;
  scalars.clip_factor = 0.75f;
  scalars.learning_rate = 0.05f / static_cast<float>(update);
  if (update == 3) scalars.fraction = 0.3f;
  if (update == 5) scalars.fraction = 1.0f / 128;
  if (update == 6) scalars.fraction = 1.25f;
  scalars.steps = static_cast<std::uint64_t>(update);
  return scalars;
}

std::vector<float> GradientSum(int update) {
  RandomStream random(5, static_cast<std::uint64_t>(update));
  std::vector<float> sum(kCount);
  for (float& g : sum) g = (random.NextUniform() - 0.5f) * 200;
  sum[17] = 0;
  return sum;
}

// The parameters and the state of a run, and its update.
struct Training {
  explicit Training(const OptimizerSection& section) : optimizer(Make(section)) {
    RandomStream random(9);
    for (std::size_t i = 0; i < kCount; ++i) parameters.push_back(random.NextUniform() - 0.5f);
    state.assign(optimizer->state_names().size(), std::vector<float>(kCount, 0.0f));
  }
  void Apply(int update, std::size_t first, std::size_t count) {
    optimizer->Apply(ScalarsOf(update), {.first = first,
                                         .count = count,
                                         .parameters = parameters.data() + first,
                                         .state = Pointers(first),
                                         .gradient_sum = GradientSum(update).data() + first});
  }
  void Apply(const UpdateScalars& scalars, const std::vector<float>& sum) {
    optimizer->Apply(scalars, {.first = 0,
                               .count = kCount,
                               .parameters = parameters.data(),
                               .state = Pointers(0),
                               .gradient_sum = sum.data()});
  }
  std::vector<float*> Pointers(std::size_t first) {
    std::vector<float*> pointers;
    for (auto& tensor : state) pointers.push_back(tensor.data() + first);
    return pointers;
  }

  std::unique_ptr<Optimizer> optimizer;
  std::vector<float> parameters;
  std::vector<std::vector<float>> state;
};

// One element in double precision, straight from the papers.
struct Reference {
  double p = 0, v = 0, s = 0;

  // `f` of a step: the averages decay f times as much, and take f times as much.
  void Step(const OptimizerSection& o, double g, double rate, double f, int t) {
    const auto keep = [f](double decay) { return 1 - f * (1 - decay); };

    if (o.name == "sgd") {
      g += o.weight_decay * p;
      v = o.momentum == 0 ? g : keep(o.momentum) * v + f * g;
      p -= f * rate * (o.nesterov ? g + o.momentum * v : v);
    } else if (o.name == "rmsprop") {
      g += o.weight_decay * p;
      s = keep(o.decay) * s + f * (1 - o.decay) * g * g;
      const double step = rate * g / std::sqrt(s + o.epsilon);
      v = o.momentum == 0 ? step : keep(o.momentum) * v + f * step;
      p -= f * v;
    } else {
      v = keep(o.beta1) * v + f * (1 - o.beta1) * g;
      s = keep(o.beta2) * s + f * (1 - o.beta2) * g * g;
      const double mean = v / (1 - std::pow(o.beta1, t));
      const double square = s / (1 - std::pow(o.beta2, t));
      p -= f * rate * (mean / (std::sqrt(square) + o.epsilon) + o.weight_decay * p);
    }
  }
};

class EveryOptimizer : public ::testing::TestWithParam<OptimizerSection> {};

TEST_P(EveryOptimizer, FollowsADoublePrecisionReference) {
  Training run(GetParam());
  std::vector<Reference> references(kCount);
  for (std::size_t i = 0; i < kCount; ++i) references[i].p = static_cast<double>(run.parameters[i]);
  for (int t = 1; t <= kUpdates; ++t) {
    const UpdateScalars scalars = ScalarsOf(t);
    const std::vector<float> sum = GradientSum(t);
    for (std::size_t i = 0; i < kCount; ++i) {
      const double g = static_cast<double>(sum[i]) * static_cast<double>(scalars.scale) *
                       static_cast<double>(scalars.clip_factor);
      references[i].Step(GetParam(), g, static_cast<double>(scalars.learning_rate),
                         static_cast<double>(scalars.fraction), t);
    }
    run.Apply(t, 0, kCount);
  }
  for (std::size_t i = 0; i < kCount; ++i) {
    ASSERT_NEAR(static_cast<double>(run.parameters[i]), references[i].p, 2e-5) << "element " << i;
  }
}

TEST_P(EveryOptimizer, SlicesInAnyOrderGiveTheBitsOfTheWhole) {
  Training whole(GetParam());
  Training sliced(GetParam());
  for (int t = 1; t <= kUpdates; ++t) {
    whole.Apply(t, 0, kCount);
    sliced.Apply(t, 900, kCount - 900);
    sliced.Apply(t, 0, 1);
    sliced.Apply(t, 1, 36);
    sliced.Apply(t, 37, 0);
    sliced.Apply(t, 37, 863);
  }
  EXPECT_EQ(std::memcmp(whole.parameters.data(), sliced.parameters.data(), kCount * sizeof(float)),
            0);
  for (std::size_t k = 0; k < whole.state.size(); ++k) {
    EXPECT_EQ(std::memcmp(whole.state[k].data(), sliced.state[k].data(), kCount * sizeof(float)),
              0);
  }
}

TEST_P(EveryOptimizer, LeavesTheRestAlone) {
  Training run(GetParam());
  const std::vector<float> before = run.parameters;
  run.Apply(1, 100, 50);
  for (std::size_t i = 0; i < kCount; ++i) {
    if (i >= 100 && i < 150) continue;
    ASSERT_EQ(run.parameters[i], before[i]) << "element " << i;
  }
  EXPECT_NE(run.parameters[100], before[100]);
}

std::vector<OptimizerSection> Sections() {
  std::vector<OptimizerSection> sections = {Section("sgd"),     Section("sgd"),
                                            Section("sgd"),     Section("rmsprop"),
                                            Section("rmsprop"), Section("adamw")};
  sections[1].nesterov = true;
  sections[2].momentum = 0;
  sections[4].momentum = 0;
  return sections;
}

std::string NameOf(const ::testing::TestParamInfo<OptimizerSection>& info) {
  return info.param.name + (info.param.nesterov ? "Nesterov" : "") +
         (info.param.momentum == 0 ? "Plain" : "");
}

INSTANTIATE_TEST_SUITE_P(Optimizer, EveryOptimizer, ::testing::ValuesIn(Sections()), NameOf);

TEST(Optimizer, NamesItsState) {
  OptimizerSection plain = Section("sgd");
  plain.momentum = 0;
  EXPECT_THAT(Make(plain)->state_names(), IsEmpty());
  EXPECT_THAT(Make(Section("sgd"))->state_names(), ElementsAre("momentum"));
  EXPECT_THAT(Make(Section("rmsprop"))->state_names(), ElementsAre("square", "momentum"));
  EXPECT_THAT(Make(Section("adamw"))->state_names(), ElementsAre("moment", "square"));
}

TEST(Optimizer, BiasCorrectionComesFromTheUpdatesNumber) {
  // With correction the first step is the learning rate in the direction of the gradient, however
  // small that is.
  OptimizerSection section = Section("adamw");
  section.weight_decay = 0;
  Training run(section);
  const std::vector<float> before = run.parameters;
  const std::vector<float> sum = GradientSum(1);
  run.Apply(1, 0, kCount);
  for (std::size_t i = 0; i < kCount; ++i) {
    const float expected = sum[i] == 0 ? 0.0f : std::copysign(0.05f, sum[i]);
    ASSERT_NEAR(before[i] - run.parameters[i], expected, 1e-4f);
  }
}

// What a round of few samples leaves behind is in proportion to them: two samples of 1000 whose
// mean gradient is as long as any must not throw the following rounds about.
TEST_P(EveryOptimizer, AnUpdateWeighsAsMuchAsItsSamples) {
  const auto after = [&](float fraction) {
    Training run(GetParam());
    run.Apply(1, 0, kCount);
    run.Apply(2, 0, kCount);
    UpdateScalars scalars = ScalarsOf(2);
    scalars.fraction = fraction;
    if (fraction > 0) run.Apply(scalars, GradientSum(100));
    for (int t = 4; t <= kUpdates; t += 1) run.Apply(ScalarsOf(t), GradientSum(t));
    return run.parameters;
  };
  const auto distance = [](const std::vector<float>& a, const std::vector<float>& b) {
    double squares = 0;
    for (std::size_t i = 0; i < a.size(); ++i) squares += std::pow(double{a[i]} - double{b[i]}, 2);
    return std::sqrt(squares);
  };
  const std::vector<float> without = after(0);
  EXPECT_LT(distance(after(0.002f), without), 0.01 * distance(after(1), without));
}

// In one slice or in pieces that end anywhere, each run comes to what an optimizer of its own
// settings makes of it.
TEST_P(EveryOptimizer, ParameterGroupsHaveSettingsOfTheirOwn) {
  const bool has_momentum = GetParam().momentum != 0;
  const ParameterGroup plain;
  const ParameterGroup still{.lr_factor = 0.25, .weight_decay = 0.0};
  ParameterGroup other{.lr_factor = 2, .weight_decay = 0.5};
  if (has_momentum) other.momentum = 0.5;
  const ParameterGroups groups = {
      {300, plain}, {37, still}, {1, still}, {400, other}, {265, plain}};
  Training grouped(GetParam());
  grouped.optimizer = *MakeOptimizer(GetParam(), groups);
  const auto alone = [&](const ParameterGroup& group) {
    OptimizerSection section = GetParam();
    section.weight_decay = group.weight_decay.value_or(section.weight_decay);
    section.momentum = group.momentum.value_or(section.momentum);
    return Training(section);
  };
  std::vector<Training> each;
  for (const GroupRun& run : groups) each.push_back(alone(run.group));
  for (int t = 1; t <= kUpdates; ++t) {
    if (t % 2 == 0) {
      grouped.Apply(t, 0, kCount);
    } else {
      grouped.Apply(t, 500, kCount - 500);
      grouped.Apply(t, 0, 337);
      grouped.Apply(t, 337, 0);
      grouped.Apply(t, 337, 163);
    }
    for (std::size_t i = 0; i < groups.size(); ++i) {
      UpdateScalars scalars = ScalarsOf(t);
      scalars.learning_rate = static_cast<float>(static_cast<double>(scalars.learning_rate) *
                                                 groups[i].group.lr_factor);
      each[i].Apply(scalars, GradientSum(t));
    }
  }
  std::size_t first = 0;
  for (std::size_t i = 0; i < groups.size(); ++i) {
    const std::size_t bytes = groups[i].parameters * sizeof(float);
    EXPECT_EQ(std::memcmp(&grouped.parameters[first], &each[i].parameters[first], bytes), 0) << i;
    for (std::size_t k = 0; k < grouped.state.size(); ++k) {
      EXPECT_EQ(std::memcmp(&grouped.state[k][first], &each[i].state[k][first], bytes), 0) << i;
    }
    first += groups[i].parameters;
  }
}

TEST(Grouped, RefusesWhatCannotBe) {
  const auto message = [](const OptimizerSection& section, const ParameterGroup& group) {
    const auto optimizer = MakeOptimizer(section, {{10, {}}, {5, group}});
    return optimizer.ok() ? std::string() : optimizer.error().message;
  };
  OptimizerSection section = Section("sgd");
  section.momentum = 0.9;
  section.nesterov = false;
  EXPECT_EQ(message(section, {.momentum = 0.5}), "");
  EXPECT_THAT(message(section, {.momentum = 0.0}), HasSubstr("others have none"));
  EXPECT_THAT(message(section, {.momentum = 1.0}), HasSubstr("(lr x 1, momentum 1): optimizer"));
  EXPECT_THAT(message(section, {.lr_factor = -1}), HasSubstr("is -1 times the job's"));
  EXPECT_THAT(message(section, {.lr_factor = std::nan("")}), HasSubstr("times the job's"));
  EXPECT_THAT(message(section, {.weight_decay = -1.0}), HasSubstr("must not be negative"));
}

TEST(Grouped, TheDigestSaysWhatDiffers) {
  const ParameterGroup still{.lr_factor = 0.5, .weight_decay = 0.0};
  const std::string digest = DigestOfGroups({{10, {}}, {5, still}});
  EXPECT_THAT(digest, HasSubstr("2 parameter groups (lr x 1 | lr x 0.5, weight_decay 0) "));
  EXPECT_EQ(digest, DigestOfGroups({{10, {}}, {5, still}}));
  EXPECT_NE(digest, DigestOfGroups({{9, {}}, {6, still}}));
  EXPECT_EQ(DigestOfGroups({}), "");
}

TEST(Optimizer, RefusesWhatCannotBe) {
  const auto message = [](const OptimizerSection& section) {
    const auto optimizer = MakeOptimizer(section);
    return optimizer.ok() ? std::string() : optimizer.error().message;
  };
  EXPECT_THAT(message(Section("adam")), HasSubstr("did you mean 'adamw'?"));
  OptimizerSection section = Section("sgd");
  section.momentum = 0;
  section.nesterov = true;
  EXPECT_THAT(message(section), HasSubstr("optimizer.nesterov"));
  section = Section("rmsprop");
  section.epsilon = 0;
  EXPECT_THAT(message(section), HasSubstr("optimizer.epsilon"));
  section = Section("sgd");
  section.momentum = 1;
  EXPECT_THAT(message(section), HasSubstr("momentum"));
}

}  // namespace
}  // namespace lockstep::worker
