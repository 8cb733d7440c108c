// Whole jobs on virtual time with random delays, losses and stops. A failing seed is named; run it
// alone with LOCKSTEP_SEED=n.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string_view>

#include "base/interval_set.h"
#include "tests/property/coordinator/model_worker.h"
#include "tests/property/coordinator/stirring_rule.h"
#include "tests/property/random_policy.h"
#include "tools/simulate/recording.h"

namespace lockstep::coordinator {
namespace {

using simulate::FaultMix;
using simulate::Recording;
using simulate::Simulation;

// Orders that workers took and that came too late, in all runs of a test.
std::uint64_t g_assigned = 0;
std::uint64_t g_refused = 0;

struct Scenario {
  std::uint32_t workers = 4;
  PolicySection policy;
  std::uint32_t min_workers = 1;
  std::uint32_t epochs = 3;
  std::uint64_t rounds = 0;
  std::uint32_t global_batch = 64;
  ModelOptions model;
  FaultMix faults;
  Duration interrupt{};
  std::optional<JobState> resume;
};

StartParameters Parameters(const Scenario& scenario) {
  StartParameters start;
  start.workers = scenario.workers;
  start.config.job.epochs = scenario.epochs;
  start.config.job.rounds = scenario.rounds;
  start.config.job.global_batch = scenario.global_batch;
  start.config.job.min_workers = scenario.min_workers;
  start.config.policy = scenario.policy;
  start.config.liveness.timeout_s = 2;
  start.config.checkpoint.every_epochs = 1;
  start.plugin = MakeStirring;
  start.job_id = "job";
  start.resume = scenario.resume;
  return start;
}

class Checker {
 public:
  Checker(World* world, Simulation* simulation) : world_(world) {
    simulation->hooks.on_send = [this](const Send& send) {
      if (const auto* commit = std::get_if<Commit>(send.message.get())) OnCommit(*commit);
    };
  }

  // A first attempt is made over delivered parts only.
  void OnCommit(const Commit& commit) {
    if (commit.attempt.value > 0 || world_->options.mapped) return;
    for (const CommittedPart& part : commit.parts) {
      for (const OwnerShare& share : commit.owners.owners) {
        if (share.owner == part.member) continue;
        const bool has =
            world_->received[share.owner].contains({part.member, commit.round, part.part});
        EXPECT_TRUE(has) << "round " << commit.round.value << ": owner " << share.owner.worker.value
                         << " has no pieces of worker " << part.member.worker.value;
      }
    }
  }

  // I2: at most once in an epoch, exactly once in a finished one.
  void CheckRecords(const Recording& recording, std::uint64_t epoch_samples,
                    IntervalSet counted = {}) {
    std::optional<RoundId> before;
    std::optional<Epoch> epoch;
    for (const auto& record : recording.records) {
      if (before) {
        EXPECT_EQ(record->round.value, before->value + 1);
      }
      before = record->round;
      if (epoch && record->epoch != *epoch) {
        EXPECT_EQ(counted.positions(), epoch_samples) << "epoch " << epoch->value;
        counted = {};
      }
      epoch = record->epoch;
      std::uint64_t samples = 0;
      for (const ContributorRecord& contributor : record->contributors) {
        for (const SampleRange& range : contributor.ranges) {
          EXPECT_TRUE(counted.Add(range)) << "[" << range.from << ", " << range.to << ") twice";
          samples += range.size();
        }
      }
      EXPECT_EQ(samples, record->samples);
    }
    last_epoch_counted = counted.positions();
  }
  std::uint64_t last_epoch_counted = 0;

 private:
  World* world_;
};

std::string Log(const Simulation& simulation, const Recording& recording) {
  std::string text;
  for (const MemberStatus& member : simulation.coordinator().Status(simulation.now()).members) {
    text += fmt::format("worker {} ({}) {}: {} of {} units{}\n", member.member.worker,
                        member.member.incarnation, Name(member.state), member.units_done,
                        member.units_given, member.owner ? ", owner" : "");
  }
  return text + recording.LogText();
}

void RunJob(Scenario scenario, std::uint64_t seed, std::optional<JobState>* checkpoint = nullptr) {
  SCOPED_TRACE(fmt::format("LOCKSTEP_SEED={}", seed));
  World world{.options = scenario.model};
  Stirring::Next() = {seed, scenario.faults.until == Duration{}};
  Simulation simulation(Parameters(scenario), seed, {}, [&world](WorkerHost* host) {
    return std::make_unique<ModelWorker>(host, &world);
  });
  Recording recording;
  recording.Attach(&simulation);
  Checker checker(&world, &simulation);
  for (std::uint32_t i = 0; i < scenario.workers; ++i) {
    simulation.AddWorker(std::chrono::milliseconds(i));
  }
  RandomStream faults(seed, 98);
  simulation.AddFaults(DrawFaults(scenario.faults, scenario.workers, faults));
  if (scenario.interrupt > Duration{}) simulation.StopJob(scenario.interrupt);
  const Time until = Simulation::kStart + scenario.faults.until + std::chrono::minutes(5);
  const bool finished = simulation.Run(until);
  ASSERT_TRUE(finished) << simulation.coordinator().Status(simulation.now()).waiting_for << "\n"
                        << Log(simulation, recording);
  const JobResult& result = *simulation.result();
  IntervalSet counted;
  if (scenario.resume) {
    std::uint64_t at = 0;
    for (const SampleRange& range : scenario.resume->sampler.uncounted) {
      ASSERT_TRUE(counted.Add({at, range.from}));
      at = range.to;
    }
    ASSERT_TRUE(counted.Add({at, scenario.model.train_samples}));
  }
  g_assigned += world.assigned;
  g_refused += world.refused;
  if (scenario.faults.until == Duration{}) {
    for (const std::string& line : recording.log) {
      EXPECT_EQ(line.find("broke the protocol"), std::string::npos) << line;
    }
  }
  checker.CheckRecords(recording, scenario.model.train_samples, counted);
  const bool lost_all =
      result.reason.starts_with("no worker holds") || result.reason.starts_with("all workers left");
  if (lost_all) {
    EXPECT_TRUE(scenario.faults.crashes || scenario.faults.stops) << Log(simulation, recording);
    return;
  }
  const JobOutcome expected =
      scenario.interrupt > Duration{} ? JobOutcome::kInterrupted : JobOutcome::kCompleted;
  EXPECT_EQ(Name(result.outcome), Name(expected)) << result.reason << "\n"
                                                  << Log(simulation, recording);
  EXPECT_TRUE(result.digest_differs.empty());
  if (expected == JobOutcome::kCompleted) {
    EXPECT_TRUE(result.test_accuracy.has_value());
    if (scenario.rounds == 0) {
      EXPECT_EQ(checker.last_epoch_counted, scenario.model.train_samples);
      EXPECT_EQ(result.totals.epochs, scenario.epochs);
    }
  }
  if (!recording.records.empty() && scenario.faults.until == Duration{}) {
    ASSERT_FALSE(recording.checkpoints.empty()) << Log(simulation, recording);
    EXPECT_EQ(recording.checkpoints.back().next_round, recording.records.back()->round.Next());
  }
  if (checkpoint != nullptr && !recording.checkpoints.empty()) {
    *checkpoint = recording.checkpoints.back();
  }
}

FaultMix Mix(std::string_view kinds, int seconds) {
  FaultMix mix;
  mix.crashes = kinds.find("crashes") != std::string_view::npos;
  mix.stops = kinds.find("stops") != std::string_view::npos;
  mix.coordinator = kinds.find("coordinator") != std::string_view::npos;
  mix.until = std::chrono::seconds(seconds);
  mix.mean_pause = std::chrono::milliseconds(200);
  return mix;
}

Scenario RandomScenario(std::uint64_t seed) {
  RandomStream random(seed, 99);
  Scenario s;
  s.workers = static_cast<std::uint32_t>(1 + random.NextBelow(7));
  s.policy = RandomPolicy(&random, s.workers);
  s.min_workers = static_cast<std::uint32_t>(random.NextBelow(s.workers + 1));
  s.epochs = static_cast<std::uint32_t>(1 + random.NextBelow(4));
  s.global_batch = static_cast<std::uint32_t>(s.workers + random.NextBelow(100));
  s.model.train_samples = 1 + random.NextBelow(1500);
  s.model.mapped = random.NextBelow(2) == 0;
  s.model.ucx = random.NextBelow(2) == 0;
  if (random.NextBelow(2) == 0)
    s.model.slow.insert(static_cast<std::uint32_t>(random.NextBelow(s.workers)));
  return s;
}

template <class Change>
void RunSeeds(std::uint64_t count, Change change) {
  const char* only = std::getenv("LOCKSTEP_SEED");
  const std::uint64_t first = only != nullptr ? std::strtoull(only, nullptr, 10) : 1;
  const std::uint64_t last = only != nullptr ? first : count;
  for (std::uint64_t seed = first; seed <= last && !::testing::Test::HasFailure(); ++seed) {
    Scenario scenario = RandomScenario(seed);
    change(&scenario);
    RunJob(scenario, seed);
  }
}

TEST(Simulation, JobsFinishWithoutFaults) {
  RunSeeds(100, [](Scenario*) {});
}

TEST(Simulation, JobsFinishWithStops) {
  RunSeeds(200, [](Scenario* s) {
    s->faults = Mix("stops", 6);
    s->epochs += 4;
  });
}

TEST(Simulation, JobsFinishWithKillsAndStops) {
  RunSeeds(300, [](Scenario* s) {
    s->faults = Mix("crashes stops", 8);
    s->epochs += 6;
  });
}

TEST(Simulation, JobsFinishWhenTheCoordinatorStops) {
  RunSeeds(100, [](Scenario* s) {
    s->faults = Mix("coordinator", 8);
    s->epochs += 4;
  });
}

TEST(Simulation, JobsFinishWithEverything) {
  RunSeeds(300, [](Scenario* s) {
    s->faults = Mix("crashes stops coordinator", 10);
    s->epochs += 6;
  });
}

TEST(Simulation, JobsFinishWhileUnitsMove) {
  g_assigned = g_refused = 0;
  RunSeeds(200, [](Scenario* s) { s->policy.name = "plugin"; });
  RunSeeds(200, [](Scenario* s) {
    s->policy.name = "plugin";
    s->faults = Mix("crashes", 8);
    s->epochs += 6;
  });
  if (std::getenv("LOCKSTEP_SEED") != nullptr) return;
  EXPECT_GT(g_assigned, 1000u);
  EXPECT_GT(g_refused, 100u);
}

TEST(Simulation, AnInterruptedJobIsResumed) {
  for (std::uint64_t seed = 1; seed <= 60 && !HasFailure(); ++seed) {
    Scenario scenario = RandomScenario(seed);
    scenario.epochs = 500;
    scenario.interrupt = std::chrono::milliseconds(30 + 7 * seed);
    std::optional<JobState> checkpoint;
    RunJob(scenario, seed, &checkpoint);
    if (!checkpoint) continue;
    scenario.interrupt = {};
    scenario.epochs = checkpoint->sampler.epoch.value + 2;
    auto state = JobStateFromJson(ToJson(*checkpoint));
    ASSERT_TRUE(state.ok()) << state.error().message;
    scenario.resume = *state;
    RunJob(scenario, seed + 1000);
  }
}

}  // namespace
}  // namespace lockstep::coordinator
