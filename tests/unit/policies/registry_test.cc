#include "policies/registry.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lockstep::policies {
namespace {

using ::testing::HasSubstr;

Result<Policy> Make(const std::string& name, std::uint32_t workers = 4) {
  PolicySection section;
  section.name = name;
  return MakePolicy(section, workers);
}

TEST(Registry, OneNameGoesWithTheOthersDefault) {
  EXPECT_EQ(Make("full")->name, "full+none");
  EXPECT_EQ(Make("backup")->name, "backup+none");
  EXPECT_EQ(Make("none")->name, "full+none");
}

TEST(Registry, TwoNamesInEitherOrder) {
  EXPECT_EQ(Make("backup+none")->name, "backup+none");
  EXPECT_EQ(Make("none+backup")->name, "backup+none");
}

TEST(Registry, RulesOfBothKindsCombine) {
  for (const std::string& closing : ClosingRuleNames()) {
    for (const std::string& work : WorkRuleNames()) {
      const auto policy = Make(closing + "+" + work);
      ASSERT_TRUE(policy.ok()) << policy.error().message;
      EXPECT_EQ(policy->name, closing + "+" + work);
      EXPECT_EQ(policy->closing->name(), closing);
      EXPECT_EQ(policy->work->name(), work);
    }
  }
  EXPECT_EQ(Make("flexrr")->name, "full+flexrr");
  EXPECT_EQ(Make("auto")->name, "auto");
}

TEST(Registry, AWholePolicyStandsAlone) {
  const auto policy = Make("auto+flexrr");
  ASSERT_FALSE(policy.ok());
  EXPECT_THAT(policy.error().message, HasSubstr("'auto' is a whole policy"));
}

TEST(Registry, LocalTakesAClosingRuleAndNoWorkRule) {
  EXPECT_EQ(Make("local")->name, "local+full");
  EXPECT_TRUE(Make("local")->local);
  EXPECT_EQ(Make("local+backup")->name, "local+backup");
  EXPECT_EQ(Make("local+backup")->closing->name(), "backup");
  EXPECT_FALSE(Make("backup")->local);
  const auto policy = Make("local+flexrr");
  ASSERT_FALSE(policy.ok());
  EXPECT_THAT(policy.error().message, HasSubstr("local steps do not move"));
  EXPECT_FALSE(Make("backup+local").ok());
}

TEST(Registry, AsyncIsRelaxedWithABoundOfFourForEachWorker) {
  const auto policy = Make("async");
  ASSERT_TRUE(policy.ok());
  EXPECT_TRUE(policy->relaxed);
  EXPECT_FALSE(Make("async+flexrr").ok());
}

TEST(Registry, MoreContributorsThanWorkersAreAnError) {
  PolicySection section;
  section.name = "deadline";
  section.deadline_min_contributors = 5;
  const auto policy = MakePolicy(section, 4);
  ASSERT_FALSE(policy.ok());
  EXPECT_THAT(policy.error().message, HasSubstr("deadline.min_contributors = 5"));
}

TEST(Registry, AnUnknownNameIsOneLineWithTheNearestKnown) {
  const auto policy = Make("bakcup");
  ASSERT_FALSE(policy.ok());
  EXPECT_EQ(policy.error().code, ErrorCode::kInvalid);
  EXPECT_THAT(policy.error().message, HasSubstr("policy.name"));
  EXPECT_THAT(policy.error().message, HasSubstr("; did you mean 'backup'?"));
  EXPECT_EQ(policy.error().message.find('\n'), std::string::npos);
  const auto far = Make("everybody");
  ASSERT_FALSE(far.ok());
  EXPECT_EQ(
      far.error().message,
      "policy.name = everybody: 'everybody' is not one of full, backup, deadline, partial, none, "
      "flexrr, balance, auto, async, plugin, local");
}

TEST(Registry, TwoOfAKindAndEmptyNamesAreErrors) {
  for (const char* name : {"full+backup", "none+none", "full+none+none", "", "full+", "+"}) {
    EXPECT_FALSE(Make(name).ok()) << name;
  }
}

TEST(Registry, BackupNeedsMoreWorkersThanSpares) {
  PolicySection section;
  section.name = "backup";
  section.backup_workers = 4;
  EXPECT_FALSE(MakePolicy(section, 4).ok());
  EXPECT_TRUE(MakePolicy(section, 5).ok());
  section.backup_workers = PolicySection::kAuto;
  EXPECT_TRUE(MakePolicy(section, 2).ok());
}

}  // namespace
}  // namespace lockstep::policies
