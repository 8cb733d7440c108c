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

TEST(Registry, AnUnknownNameIsOneLineWithTheNearestKnown) {
  const auto policy = Make("bakcup");
  ASSERT_FALSE(policy.ok());
  EXPECT_EQ(policy.error().code, ErrorCode::kInvalid);
  EXPECT_THAT(policy.error().message, HasSubstr("policy.name"));
  EXPECT_THAT(policy.error().message, HasSubstr("'backup'"));
  EXPECT_EQ(policy.error().message.find('\n'), std::string::npos);
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
}

}  // namespace
}  // namespace lockstep::policies
