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
  EXPECT_NE(Nearest(std::string(100000, 'x'), known), "");
}

}  // namespace
}  // namespace lockstep
