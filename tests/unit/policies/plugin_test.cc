#include "policies/plugin.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/ini.h"
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

// Less than nine tenths, and it is all that can come.
TEST(Plugin, OfWhatIsSkippedOrLeftOutTheExampleDoesNotWaitForMore) {
  auto policy = Load(PLUGINS "policy_plugin_good.so");
  ASSERT_TRUE(policy.ok()) << policy.error().message;
  RoundModel round(4, 4, std::chrono::milliseconds(10));
  round.worker(3).units_given = 3;
  round.AdvanceTo(round.now() + std::chrono::milliseconds(35));
  EXPECT_FALSE(policy->closing->Judge(round.view()).close);
  round.AdvanceTo(round.now() + std::chrono::milliseconds(10));
  round.worker(3).parts.clear();
  EXPECT_TRUE(policy->closing->Judge(round.view()).close);
  round.view().exact = true;
  EXPECT_FALSE(policy->closing->Judge(round.view()).close);
  RoundView& view = round.view();
  view.samples_wanted -= 4 * RoundModel::kUnitSamples;
  EXPECT_TRUE(policy->closing->Judge(view).close);
}

TEST(Plugin, WhatItThrowsIsNotedAndItIsAskedNoMore) {
  auto policy = Load(PLUGINS "policy_plugin_throwing.so");
  ASSERT_TRUE(policy.ok()) << policy.error().message;
  EXPECT_TRUE(IsPrintable(policy->name)) << policy->name;
  ASSERT_NE(policy->threw, nullptr);
  RoundModel round(2, 4, std::chrono::milliseconds(10));
  EXPECT_TRUE(IsPrintable(policy->closing->Judge(round.view()).reason));
  EXPECT_TRUE(policy->closing->CanDoWithout(round.view()));
  EXPECT_EQ(*policy->threw, "");
  round.Next();
  EXPECT_FALSE(policy->closing->Judge(round.view()).close);
  EXPECT_THAT(*policy->threw, HasSubstr("a rule of its own"));
  EXPECT_THAT(*policy->threw, Not(HasSubstr("\n")));
  EXPECT_FALSE(policy->closing->CanDoWithout(round.view()));
  const std::vector<WorkerView> members(2);
  EXPECT_THAT(policy->work->Share(members, 5), ::testing::ElementsAre(3, 2));
}

TEST(Plugin, EachThingThatCanBeWrongIsOneLineThatNamesTheFile) {
  const auto message = [](const std::string& library) {
    const auto policy = Load(library);
    EXPECT_FALSE(policy.ok());
    return policy.ok() ? std::string() : policy.error().message;
  };
  EXPECT_THAT(message(""), HasSubstr("policy.plugin must name"));
  EXPECT_THAT(message("nothing.so"), HasSubstr("policy.plugin = nothing.so: cannot be loaded"));
  EXPECT_THAT(message(PLUGINS "policy_plugin_none.so"), HasSubstr("is not a policy plug-in"));
  EXPECT_THAT(message(PLUGINS "policy_plugin_old.so"), HasSubstr("for version 0"));
  EXPECT_THAT(message(PLUGINS "policy_plugin_empty.so"), HasSubstr("no closing rule"));
  EXPECT_THAT(message(PLUGINS "policy_plugin_local.so"), HasSubstr("rounds are of local steps"));
  EXPECT_THAT(message("nothing.so"), Not(HasSubstr("\n")));
  PolicySection section;
  section.name = "plugin";
  section.plugin = PLUGINS "policy_plugin_throwing.so";
  section.backup_workers = 2;
  const auto thrown = MakePolicy(section, 4, coordinator::LoadPolicy);
  ASSERT_FALSE(thrown.ok());
  EXPECT_THAT(thrown.error().message, HasSubstr("throwing.so: threw: something that is no std::"));
}

}  // namespace
}  // namespace lockstep::policies
