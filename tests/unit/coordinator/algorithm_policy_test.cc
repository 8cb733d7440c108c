// exchange.algorithm = auto follows the policy that is in force, not the one that a job began with.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/golden/story.h"

namespace lockstep::coordinator {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// What it takes for the first round, after these policies one behind the other.
std::string Taken(const std::vector<std::string>& policies) {
  Story s("test", {.policy = policies.front(), .algorithm = "auto"});
  for (std::size_t i = 1; i < policies.size(); ++i) s.Ask(PolicyRequested{policies[i]}, "policy");
  s.Begin();
  return s.text();
}

TEST(AlgorithmOfAPolicy, AsyncTakesDirectOnlyWhileItIsInForce) {
  const auto held =
      HasSubstr("exchange.algorithm = auto chooses direct: policy.name = async takes it");
  const auto free = HasSubstr("exchange.algorithm = auto chooses direct: 3 workers, 0.00 MiB");
  EXPECT_THAT(Taken({"full"}), free);
  EXPECT_THAT(Taken({"async"}), held);
  EXPECT_THAT(Taken({"full", "async"}), held);
  for (const auto& policies :
       {std::vector<std::string>{"async", "full"}, {"full", "async", "full"}}) {
    EXPECT_THAT(Taken(policies), free);
    EXPECT_THAT(Taken(policies), Not(held));
  }
}

}  // namespace
}  // namespace lockstep::coordinator
