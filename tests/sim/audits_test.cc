// A simulated worker whose gradients are wrong from some moment on is found and put out, also among
// other faults; and no other is.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tools/simulate/fault_job.h"
#include "tools/simulate/fault_runs.h"
#include "tools/simulate/options.h"

namespace lockstep::simulate {
namespace {

FaultOutcome RunSeed(std::vector<std::string> arguments) {
  const std::vector<std::string> all = {"--faults", "--workers=5", "--policy.name=full",
                                        "--audit.share=0.2"};
  arguments.insert(arguments.begin(), all.begin(), all.end());
  auto options = ParseSimulateOptions(arguments);
  EXPECT_TRUE(options.ok()) << options.error().message;
  return RunFaultJob(FaultJobOf(*options, options->first_seed));
}

TEST(Audits, AWorkerThatComputesWrongGradientsIsPutOut) {
  int found = 0;
  for (int seed = 1; seed <= 20; ++seed) {
    const FaultOutcome outcome =
        RunSeed({"--seed", std::to_string(seed), "--fault", "flip@0.1s:2"});
    EXPECT_EQ(outcome.failure, "") << seed << outcome.details;
    if (!outcome.audit) continue;  // its gradients are compressed
    ++found;
    ASSERT_FALSE(outcome.audit->wrong.empty()) << seed;
    EXPECT_EQ(outcome.audit->wrong.size(), 1u) << seed;
  }
  EXPECT_GT(found, 10);
}

TEST(Audits, NobodyIsAmongOtherFaults) {
  std::uint64_t units = 0;
  for (int seed = 1; seed <= 30; ++seed) {
    const FaultOutcome outcome = RunSeed({"--seed", std::to_string(seed)});
    EXPECT_EQ(outcome.failure, "") << seed << outcome.details;
    if (!outcome.audit) continue;
    units += outcome.audit->units;
    EXPECT_EQ(outcome.audit->differed, 0u) << seed;
  }
  EXPECT_GT(units, 1000u);
}

}  // namespace
}  // namespace lockstep::simulate
