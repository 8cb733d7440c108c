#include "base/metric.h"

#include <gtest/gtest.h>

#include <cmath>

namespace lockstep {
namespace {

Metric Of(Reduction reduction, double value, std::uint64_t samples = 0) {
  return {"m", reduction, value, samples};
}

double Merged(Reduction reduction, double a, double b) {
  std::vector<Metric> all;
  Merge({Of(reduction, a)}, &all);
  Merge({Of(reduction, b)}, &all);
  EXPECT_EQ(all.size(), 1u);
  return ValueOf(all.front());
}

TEST(Metric, IsReducedAsItsNameSays) {
  EXPECT_EQ(Merged(Reduction::kSum, 2, 3), 5);
  EXPECT_EQ(Merged(Reduction::kMin, 2, 3), 2);
  EXPECT_EQ(Merged(Reduction::kMax, 2, 3), 3);
  std::vector<Metric> mean;
  Merge({Of(Reduction::kMean, 30, 10)}, &mean);  // 3 each
  Merge({Of(Reduction::kMean, 1, 1)}, &mean);
  EXPECT_EQ(ValueOf(mean.front()), 31.0 / 11);
}

TEST(Metric, WhatIsNoNumberIsSeenWhereverItComes) {
  for (const Reduction reduction : {Reduction::kSum, Reduction::kMin, Reduction::kMax}) {
    EXPECT_TRUE(std::isnan(Merged(reduction, std::nan(""), 1)));
    EXPECT_TRUE(std::isnan(Merged(reduction, 1, std::nan(""))));
  }
}

TEST(Metric, OfOneNameAndTwoReductionsAreTwo) {
  std::vector<Metric> all;
  Merge({{"b", Reduction::kMax, 1, 0}, {"a", Reduction::kSum, 2, 0}}, &all);
  Merge({{"b", Reduction::kMin, 3, 0}, {"b", Reduction::kMax, 4, 0}}, &all);
  EXPECT_EQ(all, (std::vector<Metric>{{"a", Reduction::kSum, 2, 0},
                                      {"b", Reduction::kMin, 3, 0},
                                      {"b", Reduction::kMax, 4, 0}}));
}

}  // namespace
}  // namespace lockstep
