// What a checkpoint says of the job, and which settings may be others when it goes on.
#include "coordinator/checkpoint/checkpoint_manifest.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "coordinator/core/resume_rules.h"

namespace lockstep::coordinator {
namespace {

using ::testing::HasSubstr;

JobState Sound() {
  JobState state;
  state.next_round = RoundId(7);
  state.updates = 7;
  state.sampler = {120, Epoch(1), {{4, 8}, {96, 120}}};
  state.totals.rounds = 7;
  state.totals.epochs = 1;
  state.totals.samples_counted = 120 + 92;
  state.dataset_digest = "abc";
  state.parameter_count = 6;
  state.state_tensors = 1;
  state.tensors = {{"weight", {2, 2}}, {"bias", {2}}};
  state.state_names = {"momentum"};
  state.settings = SettingsToRemember(JobConfig());
  state.digest = {1, ~std::uint64_t{0}};
  return state;
}

// What is wrong with it although its checksum fits.
std::string Wrong(const JobState& state) {
  const auto read = JobStateFromJson(ToJson(state));
  return read.ok() ? "nothing" : read.error().message;
}

TEST(JobState, ComesBackAsItWas) {
  const JobState state = Sound();
  const auto read = JobStateFromJson(ToJson(state));
  ASSERT_TRUE(read.ok()) << read.error().message;
  EXPECT_EQ(read->sampler, state.sampler);
  EXPECT_EQ(read->tensors, state.tensors);
  EXPECT_EQ(read->state_names, state.state_names);
  EXPECT_EQ(read->settings, state.settings);
  EXPECT_EQ(read->digest, state.digest);
  EXPECT_EQ(ToJson(*read), ToJson(state));
}

TEST(JobState, WhatCannotBeIsRefused) {
  JobState state = Sound();
  state.next_round = RoundId(0);
  EXPECT_THAT(Wrong(state), HasSubstr("next_round is 0"));
  state = Sound();
  state.parameter_count = 0;
  EXPECT_THAT(Wrong(state), HasSubstr("parameter_count"));
  state = Sound();
  state.sampler.uncounted.clear();
  EXPECT_THAT(Wrong(state), HasSubstr("nothing is left"));
  state = Sound();
  state.sampler.uncounted = {{96, 120}, {4, 8}};
  EXPECT_THAT(Wrong(state), HasSubstr("[4, 8)"));
  state = Sound();
  state.sampler.uncounted = {{96, 121}};
  EXPECT_THAT(Wrong(state), HasSubstr("[96, 121)"));
  state = Sound();
  state.updates = 8;
  EXPECT_THAT(Wrong(state), HasSubstr("8 updates"));
  state = Sound();
  state.totals.epochs = 2;
  EXPECT_THAT(Wrong(state), HasSubstr("2 finished epochs"));
  state = Sound();
  ++state.totals.samples_counted;
  EXPECT_THAT(Wrong(state), HasSubstr("213 samples were counted"));
}

// With job.on_nan = skip. At a job's end what was left out last is dropped, too, and still of the
// epoch.
TEST(JobState, WhatWasSkippedIsNeitherCountedNorLeft) {
  JobState state = Sound();
  state.totals.samples_counted -= 20;
  EXPECT_THAT(Wrong(state), HasSubstr("192 samples were counted and 0 dropped"));
  state.totals.samples_dropped = 19;
  EXPECT_THAT(Wrong(state), HasSubstr("192 samples were counted and 19 dropped"));
  for (const std::uint64_t dropped : {20, 24}) {
    state.totals.samples_dropped = dropped;
    EXPECT_EQ(Wrong(state), "nothing");
  }
}

TEST(JobState, EachChangedByteIsSeen) {
  const std::string text = ToJson(Sound());
  for (std::size_t i = 0; i < text.size(); ++i) {
    std::string changed = text;
    changed[i] = changed[i] == '1' ? '2' : '1';
    if (std::isspace(static_cast<unsigned char>(text[i]))) continue;  // of no meaning
    EXPECT_FALSE(JobStateFromJson(changed).ok()) << changed.substr(i < 20 ? 0 : i - 20, 40);
  }
  for (std::size_t size = 0; size + 2 < text.size(); size += 7) {
    EXPECT_FALSE(JobStateFromJson(text.substr(0, size)).ok()) << size;
  }
}

std::string Refusal(const JobState& state, void (*change)(JobConfig*)) {
  JobConfig config;
  change(&config);
  const Status status = CheckResume(state, config);
  return status.ok() ? "" : status.error().message;
}

TEST(ResumeRules, WhatTheTensorsAndTheEpochHangOnStays) {
  JobState state = Sound();
  EXPECT_EQ(Refusal(state, [](JobConfig*) {}), "");
  EXPECT_EQ(Refusal(state, [](JobConfig* config) { config->data.digest = "abc"; }), "");
  EXPECT_THAT(
      Refusal(state, [](JobConfig* config) { config->data.digest = "xyz"; }),
      HasSubstr("data.digest = xyz, but the checkpoint was made with the data of digest abc"));
  const auto seed = [](JobConfig* config) { config->job.seed += 1; };
  EXPECT_THAT(Refusal(state, seed), HasSubstr("job.seed"));
  EXPECT_THAT(Refusal(state, [](JobConfig* config) { config->model.widths = {5}; }),
              HasSubstr("model.widths"));
  EXPECT_THAT(Refusal(state, [](JobConfig* config) { config->data.format = "cifar10"; }),
              HasSubstr("data.format"));
  EXPECT_THAT(Refusal(state, [](JobConfig* config) { config->policy.name = "local"; }),
              HasSubstr("policy.name"));
  state.settings["optimizer.name"] = "sgd";
  state.settings["optimizer.momentum"] = "0.9";
  const auto no_momentum = [](JobConfig* config) {
    config->optimizer.name = "sgd";
    config->optimizer.momentum = 0;
  };
  const auto other_momentum = [](JobConfig* config) {
    config->optimizer.name = "sgd";
    config->optimizer.momentum = 0.5;
  };
  EXPECT_THAT(Refusal(state, no_momentum), HasSubstr("optimizer.momentum"));
  EXPECT_EQ(Refusal(state, other_momentum), "");
  state.settings.erase("job.seed");
  EXPECT_THAT(Refusal(state, seed), HasSubstr("does not say what job.seed was"));
}

TEST(ResumeRules, FactorsAreOfTheStateOrNot) {
  JobState state = Sound();
  const auto refusal = [&](const char* name) {
    JobConfig config;
    config.exchange.compression = name;
    const Status status = CheckResume(state, config);
    return status.ok() ? std::string() : status.error().message;
  };
  EXPECT_EQ(refusal("topk"), "");
  EXPECT_THAT(refusal("powersgd"),
              HasSubstr("exchange.compression = powersgd, but the checkpoint was made with none"));
  state.settings["exchange.compression"] = "powersgd";
  EXPECT_EQ(refusal("powersgd"), "");
  EXPECT_THAT(refusal("none"), HasSubstr("made with powersgd"));
  EXPECT_THAT(refusal("topk"), HasSubstr("made with powersgd"));
  // One of before there was such a setting.
  state.settings.erase("exchange.compression");
  EXPECT_EQ(refusal("none"), "");
  EXPECT_THAT(refusal("powersgd"), HasSubstr("made with none"));
}

TEST(ResumeRules, BetweenTwoEpochsTheSeedMayBeAnother) {
  JobState state = Sound();
  state.settings["data.format"] = "idx";
  const auto seed = [](JobConfig* config) {
    config->data.format = "idx";
    config->job.seed += 1;
  };
  EXPECT_THAT(Refusal(state, seed), HasSubstr("mid-epoch"));
  state.sampler.uncounted = {{0, 120}};
  EXPECT_EQ(Refusal(state, seed), "");
  // Synthetic data are made out of it.
  state.settings["data.format"] = "synthetic";
  EXPECT_THAT(Refusal(state,
                      [](JobConfig* config) {
                        config->data.format = "synthetic";
                        config->job.seed += 1;
                      }),
              HasSubstr("synthetic"));
}

TEST(ResumeRules, WhatSetsThePaceMayChange) {
  const JobState state = Sound();
  EXPECT_EQ(Refusal(state,
                    [](JobConfig* config) {
                      config->job.global_batch = 17;
                      config->job.units = 3;
                      config->job.epochs = 9;
                      config->optimizer.lr = 1;
                      config->policy.name = "backup";
                      config->data.path = "elsewhere";
                    }),
            "");
}

}  // namespace
}  // namespace lockstep::coordinator
