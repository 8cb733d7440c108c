// One worker tells the coordinator what samples cost, piece by piece.
#include <memory>

#include "tests/unit/worker_core/machine_fixture.h"
#include "worker/core/cost_report.h"

namespace lockstep::worker {
namespace {

constexpr std::size_t kPiece = msg::Costs::kMost;

event::CostsGiven Given(std::uint32_t epoch, std::size_t samples, std::uint16_t cost = 258) {
  return {Epoch(epoch), 0.5, std::make_shared<std::vector<std::uint16_t>>(samples, cost)};
}

class CostReportTest : public MachineTest {
 protected:
  explicit CostReportTest(bool takes = true) : MachineTest(4096, Asked(takes)) {}

  static MachineConfig Asked(bool takes) {
    MachineConfig config = Config();
    config.takes_costs = takes;
    return config;
  }
};

TEST_F(CostReportTest, APieceComesWithEachPlan) {
  Do(Given(0, kPiece + 2));
  EXPECT_FALSE(Told<msg::Costs>()) << "whoever has the lowest id tells them, and no plan names it";
  Begin(0);
  auto piece = Told<msg::Costs>();
  ASSERT_TRUE(piece);
  EXPECT_EQ(piece->from, 0u);
  EXPECT_EQ(piece->costs.size(), 2 * kPiece);
  EXPECT_EQ(piece->scale, 0.5);
  EXPECT_EQ(piece->costs[0], std::byte{2});
  EXPECT_EQ(piece->costs[1], std::byte{1});
  Do(Given(1, 3));
  piece = Told<msg::Costs>();
  ASSERT_TRUE(piece) << "the rest of this epoch comes before the next one";
  EXPECT_EQ(piece->epoch, Epoch(0));
  EXPECT_EQ(piece->from, kPiece);
  EXPECT_EQ(piece->costs.size(), 4u);
}

class NoCostReportTest : public CostReportTest {
 protected:
  NoCostReportTest() : CostReportTest(false) {}
};

// A coordinator of an earlier version would take it for a violation.
TEST_F(NoCostReportTest, NothingIsToldToWhomTakesNone) {
  Do(Given(0, 8));
  Begin(0);
  EXPECT_FALSE(Told<msg::Costs>());
}

class RunsByCostTest : public MachineTest {
 protected:
  RunsByCostTest() : MachineTest(4096, Asked()) {}

  // No coordinator has to take costs for that.
  static MachineConfig Asked() {
    MachineConfig config = Config();
    config.takes_costs = false;
    config.most_run_cost = 80;
    return config;
  }
  void Give(std::uint32_t units) {
    Do(event::PeerUp{kPeer, "test"});
    Plan plan = MakePlan(0, units);
    plan.assignments.front().runs = {};
    Tell(msg::Start{StateSource::kSeed, std::move(plan), 0});
  }
};

TEST_F(RunsByCostTest, TheyAreAsLongAsTheirBoundAllows) {
  Do(CostsOf(Epoch(0), std::vector<float>(64, 10), /*exact=*/true));
  Give(5);
  EXPECT_EQ(TakeRun().count, 2u) << "8 samples of 10";
  EXPECT_EQ(TakeRun().count, 2u);
  EXPECT_EQ(TakeRun().count, 1u);
}

TEST_F(RunsByCostTest, OfAnotherEpochNothingIsKnown) {
  Do(CostsOf(Epoch(1), std::vector<float>(64, 10), /*exact=*/true));
  Give(3);
  EXPECT_EQ(TakeRun().count, 1u);
}

}  // namespace
}  // namespace lockstep::worker
