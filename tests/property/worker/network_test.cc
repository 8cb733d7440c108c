// Whole jobs: the real coordinator and real step machines with real memory, under random delays,
// stops and kills. Each update of each worker is compared, bit by bit, with what the commit comes
// to when it is computed in one place. A failing seed is run again alone with LOCKSTEP_SEED=n;
// LOCKSTEP_SEEDS=n runs that many.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string_view>

#include "tests/property/coordinator/stirring_rule.h"
#include "tools/simulate/fault_job.h"

namespace lockstep::simulate {
namespace {

FaultMix Mix(std::string_view kinds, int seconds) {
  FaultMix mix;
  mix.crashes = kinds.find("crashes") != std::string_view::npos;
  mix.stops = kinds.find("stops") != std::string_view::npos;
  mix.coordinator = kinds.find("coordinator") != std::string_view::npos;
  mix.until = std::chrono::seconds(seconds);
  // Sparse enough that most jobs have somebody left to go on.
  mix.mean_pause = std::chrono::milliseconds(mix.crashes || mix.stops ? 500 : 200);
  return mix;
}

// Jobs take ten times as long in a sanitized build.
#ifdef LOCKSTEP_SANITIZED
constexpr std::uint64_t kShare = 15;
#else
constexpr std::uint64_t kShare = 1;
#endif

// What all runs of a test came to together.
struct Total {
  std::uint64_t jobs = 0;
  std::uint64_t all_lost = 0;  // the faults had left nobody
  std::uint64_t applied = 0, caught_up = 0;
  RealNumbers::Counts numbers;
  std::map<std::string, std::uint64_t> counts;
};

Total RunSeeds(std::uint64_t count, const FaultMix& mix, std::uint32_t more_epochs,
               bool stir = false) {
  const char* only = std::getenv("LOCKSTEP_SEED");
  const std::uint64_t first = only != nullptr ? std::strtoull(only, nullptr, 10) : 1;
  const char* many = std::getenv("LOCKSTEP_SEEDS");
  count = many != nullptr ? std::strtoull(many, nullptr, 10) : count / kShare;
  const std::uint64_t last = only != nullptr ? first : count;
  Total total;
  for (std::uint64_t seed = first; seed <= last && !::testing::Test::HasFailure(); ++seed) {
    FaultDraw draw;
    draw.seed = seed;
    draw.mix = mix;
    draw.more_epochs = more_epochs;
    if (mix.crashes || mix.stops) draw.workers = static_cast<std::uint32_t>(3 + seed % 4);
    if (stir) {
      coordinator::Stirring::Next() = {seed, mix.until == Duration{}};
      draw.plugin = coordinator::MakeStirring;
    }
    const FaultJob job = DrawFaultJob(draw);
    const bool tell = std::getenv("LOCKSTEP_HISTORY") != nullptr;
    if (tell) fmt::print("policy {}\n", job.policy.name);
    const auto history = [](const std::string& line) { fmt::print("{}\n", line); };
    const FaultOutcome outcome = tell ? RunFaultJob(job, history) : RunFaultJob(job);
    EXPECT_EQ(outcome.failure, "") << "LOCKSTEP_SEED=" << seed << "\n" << outcome.details;
    EXPECT_TRUE(outcome.all_lost || outcome.applied > 0) << "LOCKSTEP_SEED=" << seed;
    ++total.jobs;
    total.all_lost += outcome.all_lost ? 1 : 0;
    total.applied += outcome.applied;
    total.caught_up += outcome.caught_up;
    total.numbers.fetched += outcome.numbers.fetched;
    total.numbers.inlined += outcome.numbers.inlined;
    total.numbers.read_in_place += outcome.numbers.read_in_place;
    for (const auto& [name, n] : outcome.counts) total.counts[name] += n;
  }
  fmt::print("{} updates compared, {} catch-ups, {} pieces fetched, {} inlined, {} read in place",
             total.applied, total.caught_up, total.numbers.fetched, total.numbers.inlined,
             total.numbers.read_in_place);
  for (const auto& [name, n] : total.counts) fmt::print(", {} {}", n, name);
  fmt::print("; {} jobs, of which {} had nobody left\n", total.jobs, total.all_lost);
  if (only == nullptr) {
    EXPECT_LE(total.all_lost, 1 + total.jobs / 8) << "too few were played to the end";
  }
  return total;
}

// Whether a count that all seeds come to together may be asked for.
bool AllSeeds() {
  return kShare == 1 && std::getenv("LOCKSTEP_SEED") == nullptr &&
         std::getenv("LOCKSTEP_SEEDS") == nullptr;
}

TEST(Network, WithoutFaults) {
  Total total = RunSeeds(30, {}, 0);
  EXPECT_EQ(total.all_lost, 0u);
  EXPECT_EQ(total.caught_up, 0u);
  if (!AllSeeds()) return;
  EXPECT_GT(total.numbers.fetched, 0u);
  EXPECT_GT(total.numbers.inlined, 0u);
  EXPECT_GT(total.numbers.read_in_place, 0u);
}

TEST(Network, WhileUnitsMove) {
  Total total = RunSeeds(40, {}, 0, true);
  EXPECT_EQ(total.all_lost, 0u);
  total = RunSeeds(30, Mix("crashes", 8), 12, true);
  if (!AllSeeds()) return;
  EXPECT_GT(total.counts["take sums"] + total.counts["fence"], 0u);
}

TEST(Network, WithStops) {
  Total total = RunSeeds(30, Mix("stops", 6), 8);
  if (!AllSeeds()) return;
  EXPECT_GT(total.counts["fence"], 0u);
}

TEST(Network, WithKillsAndStops) {
  Total total = RunSeeds(45, Mix("crashes stops", 8), 12);
  if (!AllSeeds()) return;
  EXPECT_GT(total.caught_up, 0u);
  EXPECT_GT(total.counts["take sums"], 0u);
  EXPECT_GT(total.counts["copy sums"], 0u);
}

TEST(Network, WithEverything) {
  Total total = RunSeeds(45, Mix("crashes stops coordinator", 10), 12);
  if (!AllSeeds()) return;
  EXPECT_GT(total.caught_up, 0u);
  EXPECT_GT(total.counts["new owners"], 0u);
}

}  // namespace
}  // namespace lockstep::simulate
