#include "base/suggest.h"

#include <gtest/gtest.h>

#include <vector>

#include "tests/property_check.h"

namespace lockstep {
namespace {

TEST(Suggest, CountsEdits) {
  EXPECT_EQ(EditDistance("", ""), 0u);
  EXPECT_EQ(EditDistance("", "abc"), 3u);
  EXPECT_EQ(EditDistance("polcy", "policy"), 1u);
  EXPECT_EQ(EditDistance("nmae", "name"), 1u);  // a swap is one
  EXPECT_EQ(EditDistance("kitten", "sitting"), 3u);
  ExpectHolds("symmetric, zero for equals, at most the longer",
              [](const std::string& a, const std::string& b) {
                const auto distance = EditDistance(a, b);
                RC_ASSERT(distance == EditDistance(b, a));
                RC_ASSERT((distance == 0) == (a == b));
                RC_ASSERT(distance <= std::max(a.size(), b.size()));
              });
}

TEST(Suggest, FindsTheNearest) {
  const std::vector<std::string> known = {"job.seed", "policy.name", "model.name",
                                          "backup.workers"};
  EXPECT_EQ(Nearest("polcy.name", known), "policy.name");
  EXPECT_EQ(Nearest("modle.name", known), "model.name");
  EXPECT_EQ(Nearest("policy.workers", known), "backup.workers");
  EXPECT_EQ(Nearest("seed", known), "job.seed");
  EXPECT_EQ(Nearest("anything", {}), "");
}

TEST(Suggest, NoneIsNearWhenMoreThanAThirdDiffers) {
  const std::vector<std::string> known = {"workers", "config", "run-dir", "listen"};
  EXPECT_EQ(Nearest("wrong", known), "");
  EXPECT_EQ(Nearest(std::string(100000, 'x'), known), "");
  EXPECT_EQ(Nearest("", known), "");
  EXPECT_EQ(Nearest("confg", known), "config");
  EXPECT_EQ(Nearest("confff", known), "config") << "two of six";
  EXPECT_EQ(Nearest("conxxx", known), "") << "three of six";
  EXPECT_EQ(Nearest("run", known), "run-dir") << "its beginning";
  EXPECT_EQ(Nearest("ru", known), "");
}

TEST(Suggest, NamesTheChoicesAndGuessesOnlyOneThatIsNear) {
  const std::vector<std::string> known = {"softmax", "mlp", "cnn"};
  EXPECT_EQ(NotOneOf("model.name", "nlp", known),
            "model.name: 'nlp' is not one of softmax, mlp, cnn; did you mean 'mlp'?");
  EXPECT_EQ(NotOneOf("model.name", "transformer", known),
            "model.name: 'transformer' is not one of softmax, mlp, cnn");
}

}  // namespace
}  // namespace lockstep
