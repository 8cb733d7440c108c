// Branches are known before they are reached, and counted by name.
#include "base/sometimes.h"

#include <gtest/gtest.h>

namespace lockstep {
namespace {

void Take(bool rare) {
  if (rare) {
    Sometimes<"test: the rare way">();
  } else {
    Sometimes<"test: the usual way">();
  }
}
// The same branch of another place.
void TakeElsewhere() { Sometimes<"test: the usual way">(); }

TEST(Sometimes, ABranchThatWasNeverReachedIsListed) {
  auto all = SometimesBranch::All();
  ASSERT_TRUE(all.contains("test: the rare way"));
  EXPECT_EQ(all["test: the rare way"], 0u);
  const auto before = all["test: the usual way"];
  Take(false);
  TakeElsewhere();
  all = SometimesBranch::All();
  EXPECT_EQ(all["test: the usual way"], before + 2);
  EXPECT_EQ(all["test: the rare way"], 0u);
  Take(true);
  EXPECT_EQ(SometimesBranch::All()["test: the rare way"], 1u);
}

}  // namespace
}  // namespace lockstep
