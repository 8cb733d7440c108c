#include "base/slowdown_spec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>

namespace lockstep {
namespace {

using ::testing::HasSubstr;
using namespace std::chrono_literals;

std::string ErrorOf(std::string_view text) {
  const auto spec = ParseSlowdownSpec(text);
  if (spec.ok()) return "";
  EXPECT_EQ(spec.error().code, ErrorCode::kInvalid);
  return spec.error().message;
}

TEST(SlowdownSpec, ActsFromItsStartForItsLength) {
  const auto spec = ParseSlowdownSpec("worker=2,factor=4,from=10s,for=5s");
  ASSERT_TRUE(spec.ok()) << spec.error().message;
  EXPECT_TRUE(AppliesTo(*spec, WorkerId(2)));
  EXPECT_FALSE(AppliesTo(*spec, WorkerId(3)));
  EXPECT_EQ(FactorAt(*spec, 0s), 1);
  EXPECT_EQ(FactorAt(*spec, 10s - 1ns), 1);
  EXPECT_EQ(FactorAt(*spec, 10s), 4);
  EXPECT_EQ(FactorAt(*spec, 15s - 1ns), 4);
  EXPECT_EQ(FactorAt(*spec, 15s), 1);
}

TEST(SlowdownSpec, WithoutALengthItActsForGood) {
  const auto spec = ParseSlowdownSpec("factor=1.5");
  ASSERT_TRUE(spec.ok());
  EXPECT_TRUE(AppliesTo(*spec, WorkerId(0)));
  EXPECT_EQ(FactorAt(*spec, 0s), 1.5);
  EXPECT_EQ(FactorAt(*spec, 24h * 365), 1.5);
  EXPECT_EQ(FactorAt(*spec, -1s), 1);
}

TEST(SlowdownSpec, MistakesNameTheKey) {
  EXPECT_THAT(ErrorOf(""), HasSubstr("expected key=value"));
  EXPECT_THAT(ErrorOf("factor=2,"), HasSubstr("expected key=value"));
  EXPECT_THAT(ErrorOf("worker=2"), HasSubstr("factor is missing"));
  EXPECT_THAT(ErrorOf("factor=0.5"), HasSubstr("factor = \"0.5\""));
  EXPECT_THAT(ErrorOf("factor=nan"), HasSubstr("expected a number"));
  EXPECT_THAT(ErrorOf("factor=2,factor=3"), HasSubstr("given twice"));
  EXPECT_THAT(ErrorOf("factor=2,worker=-1"), HasSubstr("worker"));
  EXPECT_THAT(ErrorOf("factor=2,from=10"), HasSubstr("unit"));
  EXPECT_THAT(ErrorOf("factro=2"), HasSubstr("did you mean \"factor\"?"));
  EXPECT_THAT(ErrorOf("pattern=pause,factor=2"), HasSubstr("known is constant"));
  EXPECT_EQ(ErrorOf("pattern=constant,factor=2"), "");
}

TEST(SlowdownSpec, RoundTrips) {
  rc::check("ParseSlowdownSpec(ToString(spec)) is spec", [] {
    SlowdownSpec spec;
    spec.factor = 1 + *rc::gen::inRange(0, 1000000) / 7.0;
    if (*rc::gen::arbitrary<bool>()) spec.worker = WorkerId(*rc::gen::arbitrary<std::uint32_t>());
    spec.from = Duration(*rc::gen::inRange<std::int64_t>(0, 1'000'000'000'000));
    if (*rc::gen::arbitrary<bool>()) {
      spec.length = Duration(*rc::gen::inRange<std::int64_t>(0, 1'000'000'000'000));
    }
    const auto back = ParseSlowdownSpec(ToString(spec));
    RC_ASSERT(back.ok());
    RC_ASSERT(*back == spec);
  });
}

}  // namespace
}  // namespace lockstep
