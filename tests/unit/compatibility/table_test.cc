// What the table says of traits that no config has.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/compatibility.h"
#include "policies/registry.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;

std::string LineOf(const JobConfig& config, const Traits& traits) {
  const Status fits = CheckTogether(config, traits);
  return fits.ok() ? "" : fits.error().message;
}

TEST(Compatibility, AConfigKnowsOfANameWhatThePolicyIs) {
  std::vector<std::string> names = {"local", "local+deadline", "backup+balance"};
  for (const auto& more :
       {policies::ClosingRuleNames(), policies::WorkRuleNames(), policies::WholePolicyNames()}) {
    names.insert(names.end(), more.begin(), more.end());
  }
  for (const std::string& name : names) {
    if (name == "plugin") continue;  // is what its library says
    PolicySection section;
    section.name = name;
    const auto policy = policies::MakePolicy(section, 4);
    ASSERT_TRUE(policy.ok()) << policy.error().message;
    const PolicyTraits is = policies::TraitsOf(*policy, name);
    EXPECT_EQ(NamedPolicy(section).relaxed, is.relaxed) << name;
    EXPECT_EQ(NamedPolicy(section).local, is.local) << name;
  }
}

TEST(Compatibility, GradientsOnAGpu) {
  const Traits memory = {.device = "cuda:0", .device_memory = true};
  JobConfig config;
  EXPECT_EQ(LineOf(config, memory), "");
  config.exchange.memory = "host";
  EXPECT_EQ(LineOf(config, memory),
            "exchange.memory = host and gradients in the memory of cuda:0: leave it at auto");
  EXPECT_EQ(LineOf(config, {.device = "cuda:0"}), "");
  config = {};
  config.exchange.compression = "topk";
  EXPECT_THAT(LineOf(config, memory),
              HasSubstr("exchange.compression = topk and gradients in the memory of cuda:0: "));
  EXPECT_EQ(LineOf(config, {.device = "cuda:0"}), "");
  EXPECT_THAT(LineOf({}, {.policy = {"local", false, true}, .device = "cuda:0"}),
              HasSubstr("policy.name = local and gradients computed on cuda:0: local steps are"));
}

TEST(Compatibility, TensorsOfTheProgram) {
  JobConfig config;
  config.exchange.compression = "powersgd";
  EXPECT_EQ(LineOf(config, {.shapes = false}),
            "exchange.compression = powersgd needs the shapes of the tensors");
  EXPECT_EQ(LineOf(config, {.averages = true}), "") << "they are no matrices";
  config.exchange.compression = "topk";
  EXPECT_THAT(LineOf(config, {.averages = true}),
              HasSubstr("exchange.compression = topk would leave out running statistics"));
  config = {};
  config.exchange.dtype = "fp16";
  EXPECT_THAT(LineOf(config, {.averages = true}),
              HasSubstr("exchange.dtype = fp16 would round running statistics"));
  config = {};
  config.optimizer.clip = 0.5;
  EXPECT_THAT(LineOf(config, {.averages = true}),
              HasSubstr("optimizer.clip = 0.5 would clip running statistics"));
}

TEST(Compatibility, OnlyDirectSaysWhatTakesIt) {
  JobConfig config;
  config.exchange.algorithm = "auto";
  const Traits full = {.policy = {.name = "full"}, .workers = 4};
  EXPECT_EQ(WhyOnlyDirect(config, full), "");
  EXPECT_EQ(WhyOnlyDirect(config, {.policy = {"async", true, false}}),
            "policy.name = async takes it");
  config.exchange.dtype = "bf16";
  EXPECT_EQ(WhyOnlyDirect(config, full), "exchange.dtype = bf16 takes it");
  config.exchange.dtype = "fp32";
  config.optimizer.replicas = 2;
  EXPECT_EQ(WhyOnlyDirect(config, full), "optimizer.replicas = 2 with --workers 4 takes it");
  EXPECT_EQ(WhyOnlyDirect(config, {.workers = 2}), "");
}

}  // namespace
}  // namespace lockstep
