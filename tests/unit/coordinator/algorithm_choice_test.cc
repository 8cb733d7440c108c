// By the model at first, then by what rounds took.
#include "coordinator/round/algorithm_choice.h"

#include <gtest/gtest.h>

namespace lockstep::coordinator {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using enum ExchangeAlgorithm;

const MeasuredLinks kLinks{1.25e9, microseconds(30)};

TEST(PredictExchange, SmallModelsOfManyWorkersTakeATree) {
  const auto predict = [](ExchangeAlgorithm algorithm, std::uint32_t workers, std::uint64_t bytes) {
    return PredictExchange(algorithm, workers, bytes, kLinks);
  };
  EXPECT_LT(predict(kTree, 1024, 64 << 10), predict(kDirect, 1024, 64 << 10) / 4);
  EXPECT_LT(predict(kTree, 1024, 64 << 10), predict(kRing, 1024, 64 << 10) / 4);
  EXPECT_LT(predict(kDirect, 4, 64 << 10), predict(kTree, 4, 64 << 10));
  EXPECT_LT(predict(kDirect, 16, 100 << 20), predict(kTree, 16, 100 << 20));
  // Bytes go once each way, whatever the way.
  EXPECT_NEAR(Seconds(predict(kRing, 4, 1u << 30)) / Seconds(predict(kDirect, 4, 1u << 30)), 1.33,
              0.1);
}

void Rounds(AlgorithmChoice& choice, Duration took) {
  for (int i = 0; i < 8; ++i) choice.OnRound(choice.chosen(), took);
}

TEST(AlgorithmChoice, IsMadeByTheModelAndSaysWhy) {
  AlgorithmChoice choice("auto");
  EXPECT_EQ(choice.Choose(512, 64 << 10, kLinks), kTree);
  EXPECT_TRUE(choice.TakeNews());
  EXPECT_FALSE(choice.TakeNews());
  EXPECT_NE(choice.reason().find("512 workers, 0.06 MiB, 1.25 GB/s, 30 us: tree should take"),
            std::string::npos)
      << choice.reason();
}

TEST(AlgorithmChoice, IsMendedByWhatRoundsTook) {
  AlgorithmChoice choice("auto");
  EXPECT_EQ(choice.Choose(64, 16 << 20, kLinks), kDirect);
  EXPECT_TRUE(choice.TakeNews()) << "the reason for the first one is news, too";
  // A network that is poor at many senders to one.
  Rounds(choice, milliseconds(400));
  EXPECT_NE(choice.Choose(64, 16 << 20, kLinks), kDirect);
  const ExchangeAlgorithm tried = choice.chosen();
  EXPECT_TRUE(choice.TakeNews());
  // Not before it is known what the other one takes.
  choice.OnRound(tried, milliseconds(900));
  EXPECT_EQ(choice.Choose(64, 16 << 20, kLinks), tried);
  Rounds(choice, milliseconds(900));
  const ExchangeAlgorithm next = choice.Choose(64, 16 << 20, kLinks);
  EXPECT_NE(next, tried);
  Rounds(choice, milliseconds(600));
  // All were tried: the one that takes least stays.
  EXPECT_EQ(choice.Choose(64, 16 << 20, kLinks), kDirect);
  EXPECT_NE(choice.reason().find("direct takes 400 ms"), std::string::npos) << choice.reason();
  Rounds(choice, milliseconds(410));
  EXPECT_EQ(choice.Choose(64, 16 << 20, kLinks), kDirect);
}

TEST(AlgorithmChoice, OfOtherWorkersNothingIsKnown) {
  AlgorithmChoice choice("auto");
  EXPECT_EQ(choice.Choose(64, 16 << 20, kLinks), kDirect);
  Rounds(choice, milliseconds(400));
  EXPECT_EQ(choice.Choose(30, 16 << 20, kLinks), kDirect);
}

TEST(AlgorithmChoice, StaysDirectWhereThereIsNoChoice) {
  AlgorithmChoice held("auto");
  EXPECT_EQ(held.Choose(512, 64 << 10, kLinks, "optimizer.replicas takes it"), kDirect);
  EXPECT_EQ(held.reason(), "optimizer.replicas takes it");
  AlgorithmChoice unmeasured("auto");
  EXPECT_EQ(unmeasured.Choose(512, 64 << 10, {}), kDirect);
  AlgorithmChoice mapped("auto");
  EXPECT_EQ(mapped.Choose(512, 64 << 10, {1e10, microseconds(5), true}), kDirect);
  AlgorithmChoice named("ring");
  EXPECT_EQ(named.Choose(512, 64 << 10, kLinks), kRing);
  EXPECT_FALSE(named.TakeNews());
}

TEST(AlgorithmChoice, BeginsAnewOnceNothingTakesDirectAnyMore) {
  AlgorithmChoice choice("auto");
  EXPECT_EQ(choice.Choose(512, 64 << 10, kLinks), kTree);
  EXPECT_EQ(choice.Choose(512, 64 << 10, kLinks, "policy.name = async takes it"), kDirect);
  EXPECT_EQ(choice.reason(), "policy.name = async takes it");
  Rounds(choice, microseconds(1));  // of a policy under which it has no choice
  EXPECT_TRUE(choice.TakeNews());
  EXPECT_EQ(choice.Choose(512, 64 << 10, kLinks), kTree);
  EXPECT_TRUE(choice.TakeNews());
}

}  // namespace
}  // namespace lockstep::coordinator
