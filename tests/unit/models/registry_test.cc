#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/unit/models/setup.h"

namespace lockstep::worker {
namespace {

using ::testing::HasSubstr;

std::string MessageFor(const ModelSpec& spec) {
  const auto compute = MakeCpuCompute();
  const auto model = MakeModel(spec, *compute);
  if (model.ok()) return "made";
  EXPECT_EQ(model.error().code, ErrorCode::kInvalid);
  return model.error().message;
}

TEST(ModelRegistry, MakesWhatIsNamed) {
  EXPECT_EQ(MessageFor(Spec("softmax", {}, {1, 2, 2})), "made");
  EXPECT_EQ(MessageFor(Spec("mlp", {}, {1, 2, 2})), "made");
  EXPECT_EQ(MessageFor(Spec("cnn", {4, 8, 16}, {3, 4, 4})), "made");
}

TEST(ModelRegistry, NamesTheNearestModel) {
  EXPECT_EQ(MessageFor(Spec("mpl", {8}, {1, 2, 2})),
            "model.name: 'mpl' is not one of softmax, mlp, cnn; did you mean 'mlp'?");
}

TEST(ModelRegistry, NamesTheKeyThatIsWrong) {
  EXPECT_THAT(MessageFor(Spec("mlp", {8}, {1, 2, 2}, 0, "batch")),
              HasSubstr("model.normalization: 'batch'"));
  EXPECT_THAT(MessageFor(Spec("mlp", {8}, {1, 2, 2}, 1)), HasSubstr("model.dropout"));
  EXPECT_THAT(MessageFor(Spec("mlp", {8, 0}, {1, 2, 2})), HasSubstr("model.widths"));
  EXPECT_THAT(MessageFor(Spec("cnn", {8}, {1, 8, 8})), HasSubstr("as 16,32,128"));
  EXPECT_THAT(MessageFor(Spec("cnn", {4, 4, 4, 16}, {1, 4, 4})), HasSubstr("too many for"));
  EXPECT_THAT(MessageFor(Spec("cnn", {4, 16}, {1, 1, 64})), HasSubstr("too many for"));
}

}  // namespace
}  // namespace lockstep::worker
