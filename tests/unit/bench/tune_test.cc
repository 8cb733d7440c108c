#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tools/bench/descent.h"
#include "tools/bench/tune_worker.h"

namespace lockstep::bench {
namespace {

using ::testing::HasSubstr;

const std::vector<Knob> kKnobs = {{"connections", "1", {"1", "2", "4"}},
                                  {"window", "8", {"2", "8", "16"}}};

bool Anything(const Choice&) { return true; }

TEST(Descent, FindsWhatIsQuickest) {
  // Four connections pay only with a window of 16.
  const auto time = [](const Choice& choice) {
    const bool wide = choice.contains("window") && choice.at("window") == "16";
    const bool four = choice.contains("connections") && choice.at("connections") == "4";
    return four ? (wide ? 0.4 : 1.1) : (wide ? 0.9 : 1.0);
  };
  std::size_t compared = 0;
  const auto found = Descend(kKnobs, 2, Anything, [&](const Tried& tried) -> Result<Comparison> {
    ++compared;
    return Comparison{time(tried.choice), {}};
  });
  ASSERT_TRUE(found.ok());
  EXPECT_EQ(found->best, (Choice{{"connections", "4"}, {"window", "16"}}));
  EXPECT_LE(compared, MostComparisons(kKnobs, 2));
}

TEST(Descent, KeepsTheDefaultsWhereNothingIsMuchQuicker) {
  std::size_t compared = 0;
  const auto found = Descend(kKnobs, 3, Anything, [&](const Tried&) -> Result<Comparison> {
    ++compared;
    return Comparison{0.98, {}};
  });
  ASSERT_TRUE(found.ok());
  EXPECT_TRUE(found->best.empty());
  EXPECT_EQ(found->tried.size(), 4u);
  EXPECT_EQ(compared, 12u);
}

TEST(Descent, TheMiddleOfTwoIsNotTheLuckierOne) {
  EXPECT_EQ(Middle({3}), 3);
  EXPECT_EQ(Middle({3, 1}), 2);
  EXPECT_EQ(Middle({9, 1, 2}), 2);
  std::size_t compared = 0;
  const auto found = Descend(kKnobs, 2, Anything, [&](const Tried&) -> Result<Comparison> {
    return Comparison{++compared % 2 == 1 ? 0.9 : 1.1, {}};
  });
  ASSERT_TRUE(found.ok());
  EXPECT_TRUE(found->best.empty());
}

TEST(Descent, LooksOnceAtWhatIsFarBehind) {
  const auto found = Descend(kKnobs, 5, Anything, [](const Tried& tried) -> Result<Comparison> {
    return Comparison{tried.value == "2" ? 3.0 : 1.0, {}};
  });
  ASSERT_TRUE(found.ok());
  for (const Tried& tried : found->tried) {
    EXPECT_EQ(tried.ratios.size(), tried.value == "2" ? 1u : 5u) << tried.knob << tried.value;
  }
}

TEST(Descent, MeasuresNothingThatDoesNotGoTogether) {
  const auto fits = [](const Choice& choice) {
    return !choice.contains("connections") || !choice.contains("window") ||
           choice.at("window") != "2";
  };
  const auto found = Descend(kKnobs, 1, fits, [&](const Tried& tried) -> Result<Comparison> {
    EXPECT_TRUE(fits(tried.choice));
    return Comparison{tried.knob == "connections" ? 0.5 : 0.4, {}};
  });
  ASSERT_TRUE(found.ok());
  EXPECT_EQ(found->best.at("window"), "16");
}

TEST(Descent, GoesOnWithoutWhatFails) {
  const auto found = Descend(kKnobs, 3, Anything, [](const Tried& tried) -> Result<Comparison> {
    if (tried.choice.contains("connections")) return Comparison{0, "worker 1 ended"};
    return Comparison{tried.value == "16" ? 0.5 : 1.0, {}};
  });
  ASSERT_TRUE(found.ok()) << found.error().message;
  EXPECT_EQ(found->best, (Choice{{"window", "16"}}));
  for (const Tried& tried : found->tried) {
    const bool fails = tried.knob == "connections";
    EXPECT_EQ(tried.failed, fails ? "worker 1 ended" : "");
    EXPECT_EQ(tried.ratios.size(), fails ? 0u : 3u);
  }
}

TEST(Descent, EndsWithAnError) {
  const auto found = Descend(kKnobs, 1, Anything, [](const Tried&) -> Result<Comparison> {
    return Error{ErrorCode::kClosed, "interrupted"};
  });
  ASSERT_FALSE(found.ok());
  EXPECT_EQ(found.error().message, "interrupted");
}

TEST(TunedJob, ComesBackAsItWas) {
  const TunedJob job{
      .parameters = 262144, .samples = 40, .environment = {{"UCX_TCP_RX_SEG_SIZE", "64k"}}};
  EXPECT_EQ(ToText(job), "parameters=262144,samples=40,UCX_TCP_RX_SEG_SIZE=64k");
  const auto back = ParseTunedJob(ToText(job));
  ASSERT_TRUE(back.ok()) << back.error().message;
  EXPECT_EQ(*back, job);
}

TEST(TunedJob, NothingElseGetsIntoAWorkersEnvironment) {
  for (const char* text :
       {"", "data", "parameters=4", "samples=4", "parameters=0,samples=1",
        "parameters=1x,samples=1", "parameters=1073741824,samples=1",
        "parameters=4,samples=4,LD_PRELOAD=evil", "parameters=4,samples=4,UCX_TCP_RX_SEG_SIZE=",
        "parameters=4,samples=4,UCX_TCP_RX_SEG_SIZE=1;2", "parameters=4,samples=4,UCX_TLS=tcp"}) {
    const auto job = ParseTunedJob(text);
    ASSERT_FALSE(job.ok()) << text;
    EXPECT_THAT(job.error().message, HasSubstr("lockstep-bench tune"));
  }
}

}  // namespace
}  // namespace lockstep::bench
