#include "policies/plugin.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "coordinator/shell/policy_loader.h"
#include "policies/registry.h"
#include "tests/unit/policies/round_model.h"

namespace lockstep::policies {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

Result<Policy> Load(const std::string& library) {
  PolicySection section;
  section.name = "plugin";
  section.plugin = library;
  return MakePolicy(section, 4, coordinator::LoadPolicy);
}

TEST(Plugin, ClosesRoundsInItsOwnWay) {
  auto policy = Load(PLUGINS "policy_plugin_good.so");
  ASSERT_TRUE(policy.ok()) << policy.error().message;
  EXPECT_EQ(policy->name, "most-samples+none");
  RoundModel round(10, 4, std::chrono::milliseconds(10));
  round.view().samples_planned = 80;
  for (std::uint32_t i = 8; i < 10; ++i) round.SetUnitTime(i, std::chrono::milliseconds(20 * i));
  round.AdvanceTo(round.now() + std::chrono::milliseconds(50));
  EXPECT_FALSE(policy->closing->Judge(round.view()).close);
  round.AdvanceTo(round.now() + std::chrono::milliseconds(600));
  EXPECT_TRUE(policy->closing->Judge(round.view()).close);
}

TEST(Plugin, EachThingThatCanBeWrongIsOneLineThatNamesTheFile) {
  const auto message = [](const std::string& library) {
    const auto policy = Load(library);
    EXPECT_FALSE(policy.ok());
    return policy.ok() ? std::string() : policy.error().message;
  };
  EXPECT_THAT(message(""), HasSubstr("policy.plugin must name"));
  EXPECT_THAT(message("nothing.so"), HasSubstr("policy.plugin = nothing.so: cannot be loaded"));
  EXPECT_THAT(message(PLUGINS "policy_plugin_none.so"), HasSubstr("is no policy plug-in"));
  EXPECT_THAT(message(PLUGINS "policy_plugin_old.so"), HasSubstr("for version 0"));
  EXPECT_THAT(message(PLUGINS "policy_plugin_empty.so"), HasSubstr("no closing rule"));
  EXPECT_THAT(message(PLUGINS "policy_plugin_local.so"), HasSubstr("rounds are of local steps"));
  EXPECT_THAT(message("nothing.so"), Not(HasSubstr("\n")));
}

}  // namespace
}  // namespace lockstep::policies
