// Whole jobs on virtual time with random delays, losses and stops: the real coordinator against
// real workers' cores. What it records, counts and commits is checked here from outside, by what
// arrived at whom and by the records alone; the numbers are Truth's. A failing seed is named; run
// it alone with LOCKSTEP_SEED=n.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "base/interval_set.h"
#include "coordinator/checkpoint/checkpoint_manifest.h"
#include "tests/property/coordinator/arrivals.h"
#include "tests/property/coordinator/stirring_rule.h"
#include "tests/property/coordinator/twice.h"
#include "tests/property/random_policy.h"
#include "tools/simulate/real_numbers.h"
#include "tools/simulate/recording.h"
#include "tools/simulate/step_worker.h"
#include "tools/simulate/truth.h"

namespace lockstep::coordinator {
namespace {

using simulate::Arrivals;
using simulate::Cluster;
using simulate::FaultMix;
using simulate::Recording;
using simulate::SavedCheckpoint;
using simulate::Simulation;

// What the jobs of a test came to together.
struct Total {
  std::uint64_t jobs = 0;
  std::uint64_t all_lost = 0;  // ended rightly, as nobody was left; what follows was not looked at
  std::uint64_t assigned = 0;
  std::uint64_t refused = 0;
};

struct Scenario {
  std::uint32_t workers = 4;
  PolicySection policy;
  policies::PluginMaker plugin = MakeStirring;
  std::uint32_t min_workers = 1;
  std::uint32_t epochs = 3;
  std::uint64_t rounds = 0;
  std::uint32_t global_batch = 64;
  std::uint64_t train_samples = 500;
  bool mapped = false;  // all on one host
  bool ucx = false;     // all offer it
  std::uint64_t inline_bytes = 0;
  std::set<std::uint32_t> slow;  // workers
  FaultMix faults;
  Duration interrupt{};
  std::optional<SavedCheckpoint> resume;
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
  // Records go on without a step back: no coordinator takes over. The fault seeds have that.
  start.config.job.coordinator_timeout_s = 0;
  start.config.checkpoint.every_epochs = 1;
  start.plugin = scenario.plugin;
  start.job_id = "job";
  start.config.exchange.mapping = scenario.mapped ? "auto" : "off";
  if (scenario.resume) start.resume = scenario.resume->state;
  return start;
}

Cluster::Options ClusterOptions(const Scenario& scenario) {
  Cluster::Options options;
  options.hosts = scenario.mapped ? 1 : 0;
  options.train_samples = scenario.train_samples;
  options.test_samples = 64;
  options.ucx = scenario.ucx;
  worker::MachineConfig& machine = options.machine;
  machine.piece_bytes = 1024;
  machine.inline_bytes = scenario.inline_bytes;
  machine.queue_capacity = 256;
  machine.chunk_bytes = 1600;
  const worker::Timeouts timeouts = worker::TimeoutsFrom(std::chrono::seconds(2));
  machine.formation_timeout = std::chrono::seconds(2);
  machine.peer_silence = timeouts.silence;
  machine.finish_timeout = std::chrono::seconds(2);
  return options;
}

// Of the job's records alone.
struct RecordCheck {
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
};

simulate::State StateOf(const SavedCheckpoint& saved) {
  const auto floats = [](const std::vector<std::byte>& bytes) {
    std::vector<float> values(bytes.size() / sizeof(float));
    std::memcpy(values.data(), bytes.data(), values.size() * sizeof(float));
    return values;
  };
  return {floats(saved.tensors.at(0)), floats(saved.tensors.at(1))};
}

std::string Log(const Simulation& simulation, const Recording& recording) {
  std::string text;
  for (const MemberStatus& member : simulation.coordinator().Status(simulation.now()).members) {
    text += fmt::format("worker {} ({}) {}: {} of {} units{}\n", member.member.worker,
                        member.member.incarnation, Name(member.state), member.units_done,
                        member.units_given, member.owner ? ", owner" : "");
  }
  return text + recording.LogText();
}

void RunJob(Scenario scenario, std::uint64_t seed, Total* total,
            std::optional<SavedCheckpoint>* checkpoint = nullptr) {
  SCOPED_TRACE(fmt::format("LOCKSTEP_SEED={}", seed));
  Stirring::Next() = {seed, scenario.faults.until == Duration{}};
  simulate::Truth truth(worker::Layout({{0, 700}, {700, 300}}, 2048), 0);
  simulate::RealNumbers::Counts counts;
  simulate::RandomNetwork network(seed);
  simulate::EvenCompute compute(std::chrono::milliseconds(2), scenario.slow, 8);
  Cluster cluster(ClusterOptions(scenario), truth.layout(), &network, &compute,
                  [&](const MemberId& self) {
                    return std::make_shared<simulate::RealNumbers>(self, &truth, &counts);
                  });
  Arrivals arrivals(&cluster);
  Simulation simulation(Parameters(scenario), seed, {}, [&cluster](simulate::WorkerHost* host) {
    return std::make_unique<simulate::StepWorker>(host, &cluster);
  });
  Recording recording;
  recording.Attach(&simulation);
  simulation.hooks.on_send = [&](const Send& send) {
    if (const auto* start = std::get_if<msg::Start>(send.message.get())) truth.OnPlan(start->plan);
    if (const auto* take = std::get_if<msg::TakeSums>(send.message.get()))
      truth.OnCommit(take->commit);
    if (const auto* commit = std::get_if<msg::Commit>(send.message.get())) {
      truth.OnCommit(*commit);
      EXPECT_EQ(scenario.mapped ? "" : arrivals.Lacking(*commit), "");
    }
  };
  std::optional<SavedCheckpoint> saved;
  simulation.hooks.after_step = [&] { simulation.coordinator().CheckInvariants(); };
  simulation.hooks.on_saved = [&](const SavedCheckpoint& checkpoint_) {
    truth.OnCheckpoint(checkpoint_.state.next_round, StateOf(checkpoint_));
    saved = checkpoint_;
  };
  simulation.hooks.on_fault = [&](const simulate::Fault& fault) {
    network.Inject(simulation.now(), fault);
    cluster.Inject(fault);
  };
  if (scenario.resume) {
    truth.OnResumed(scenario.resume->state.next_round, StateOf(*scenario.resume));
    simulation.PutOnDisk(*scenario.resume);
  }
  for (std::uint32_t i = 0; i < scenario.workers; ++i) {
    simulation.AddWorker(std::chrono::milliseconds(i));
  }
  RandomStream faults(seed, 98);
  simulation.AddFaults(DrawFaults(scenario.faults, scenario.workers, faults));
  if (scenario.interrupt > Duration{}) simulation.StopJob(scenario.interrupt);
  const Time until = Simulation::kStart + scenario.faults.until + std::chrono::minutes(5);
  const bool finished = simulation.Run(until);
  EXPECT_TRUE(truth.errors().empty()) << truth.errors().front();
  ASSERT_TRUE(finished) << simulation.coordinator().Status(simulation.now()).waiting_for << "\n"
                        << cluster.Describe() << Log(simulation, recording);
  const JobResult& result = *simulation.result();
  IntervalSet counted;
  if (scenario.resume) {
    std::uint64_t at = 0;
    for (const SampleRange& range : scenario.resume->state.sampler.uncounted) {
      ASSERT_TRUE(counted.Add({at, range.from}));
      at = range.to;
    }
    ASSERT_TRUE(counted.Add({at, scenario.train_samples}));
  }
  ++total->jobs;
  total->assigned += arrivals.assigned();
  total->refused += arrivals.refused();
  if (scenario.faults.until == Duration{}) {
    for (const std::string& line : recording.log) {
      EXPECT_EQ(line.find("broke the protocol"), std::string::npos) << line;
    }
  }
  RecordCheck checker;
  checker.CheckRecords(recording, scenario.train_samples, counted);
  const bool lost_all = result.reason.starts_with("no worker holds") ||
                        result.reason.starts_with("all workers left") ||
                        result.reason.find("cannot reach") != std::string::npos;  // no formation
  if (lost_all) {
    EXPECT_TRUE(scenario.faults.crashes || scenario.faults.stops) << Log(simulation, recording);
    ++total->all_lost;
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
      EXPECT_EQ(checker.last_epoch_counted, scenario.train_samples);
      EXPECT_EQ(result.totals.epochs, scenario.epochs);
    }
  }
  if (!recording.records.empty() && scenario.faults.until == Duration{}) {
    ASSERT_FALSE(recording.checkpoints.empty()) << Log(simulation, recording);
    EXPECT_EQ(recording.checkpoints.back().next_round, recording.records.back()->round.Next());
  }
  if (checkpoint != nullptr) *checkpoint = saved;
}

// Sparse enough, among enough workers, that most jobs have somebody left to go on.
void AddFaults(Scenario* s, std::string_view kinds, int seconds) {
  FaultMix mix;
  mix.crashes = kinds.find("crashes") != std::string_view::npos;
  mix.stops = kinds.find("stops") != std::string_view::npos;
  mix.coordinator = kinds.find("coordinator") != std::string_view::npos;
  mix.until = std::chrono::seconds(seconds);
  mix.mean_pause = std::chrono::milliseconds(mix.crashes || mix.stops ? 500 : 200);
  s->faults = mix;
  if (mix.crashes || mix.stops) {
    s->workers += 2;
    s->global_batch += 2;
  }
}

Scenario RandomScenario(std::uint64_t seed) {
  RandomStream random(seed, 99);
  Scenario s;
  s.workers = static_cast<std::uint32_t>(1 + random.NextBelow(7));
  s.policy = RandomPolicy(&random, s.workers);
  s.min_workers = static_cast<std::uint32_t>(random.NextBelow(s.workers + 1));
  s.epochs = static_cast<std::uint32_t>(1 + random.NextBelow(4));
  s.global_batch = static_cast<std::uint32_t>(s.workers + random.NextBelow(100));
  s.train_samples = 1 + random.NextBelow(1500);
  s.mapped = random.NextBelow(2) == 0;
  s.ucx = random.NextBelow(2) == 0;
  if (random.NextBelow(2) == 0)
    s.slow.insert(static_cast<std::uint32_t>(random.NextBelow(s.workers)));
  s.inline_bytes = std::array<std::uint64_t, 3>{0, 2048, 32768}[random.NextBelow(3)];
  return s;
}

// Jobs take ten times as long in a sanitized build.
#ifdef LOCKSTEP_SANITIZED
constexpr std::uint64_t kShare = 20;
#else
constexpr std::uint64_t kShare = 1;
#endif

bool OneSeedOnly() { return std::getenv("LOCKSTEP_SEED") != nullptr; }

template <class Change>
Total RunSeeds(std::uint64_t count, Change change) {
  const char* only = std::getenv("LOCKSTEP_SEED");
  const std::uint64_t first = only != nullptr ? std::strtoull(only, nullptr, 10) : 1;
  const std::uint64_t last = only != nullptr ? first : count / kShare;
  Total total;
  for (std::uint64_t seed = first; seed <= last && !::testing::Test::HasFailure(); ++seed) {
    Scenario scenario = RandomScenario(seed);
    change(&scenario);
    RunJob(scenario, seed, &total);
  }
  if (!OneSeedOnly()) {
    fmt::print("{} jobs, of which {} had nobody left\n", total.jobs, total.all_lost);
    EXPECT_LE(total.all_lost, 1 + total.jobs / 8) << "what follows was not looked at";
  }
  return total;
}

TEST(Simulation, JobsFinishWithoutFaults) {
  RunSeeds(50, [](Scenario*) {});
}

TEST(Simulation, JobsFinishWithStops) {
  RunSeeds(60, [](Scenario* s) {
    AddFaults(s, "stops", 6);
    s->epochs += 4;
  });
}

TEST(Simulation, JobsFinishWithKillsAndStops) {
  RunSeeds(100, [](Scenario* s) {
    AddFaults(s, "crashes stops", 8);
    s->epochs += 6;
  });
}

TEST(Simulation, JobsFinishWhenTheCoordinatorStops) {
  RunSeeds(50, [](Scenario* s) {
    AddFaults(s, "coordinator", 8);
    s->epochs += 4;
  });
}

TEST(Simulation, JobsFinishWithEverything) {
  RunSeeds(100, [](Scenario* s) {
    AddFaults(s, "crashes stops coordinator", 10);
    s->epochs += 6;
  });
}

TEST(Simulation, JobsFinishWhileUnitsMove) {
  const Total without = RunSeeds(80, [](Scenario* s) { s->policy.name = "plugin"; });
  const Total with = RunSeeds(80, [](Scenario* s) {
    s->policy.name = "plugin";
    AddFaults(s, "crashes", 8);
    s->epochs += 6;
  });
  if (OneSeedOnly()) return;
  EXPECT_GT(without.assigned + with.assigned, 500u / kShare);
  EXPECT_GT(without.refused + with.refused, 50u / kShare);
}

TEST(Simulation, WhatRulesKeepFromLookToLookIsWhatTheyWouldMakeAnew) {
  const auto twice = [](Scenario* s) {
    PolicySection& section = Twice::Next();
    section = s->policy;
    section.name = s->workers % 3 == 0 ? "auto" : s->workers % 2 == 0 ? "flexrr" : "backup+flexrr";
    section.backup_workers = PolicySection::kAuto;
    s->policy.name = "plugin";
    s->plugin = MakeTwice;
    s->workers += 3;
    s->global_batch += 40;
    s->slow.insert(1);
  };
  RunSeeds(50, twice);
  RunSeeds(75, [&](Scenario* s) {
    twice(s);
    AddFaults(s, "crashes stops coordinator", 8);
    s->epochs += 4;
  });
}

TEST(Simulation, AnInterruptedJobIsResumed) {
  std::uint64_t resumed = 0;
  for (std::uint64_t seed = kShare; seed <= 60 && !HasFailure(); seed += kShare) {
    Scenario scenario = RandomScenario(seed);
    scenario.epochs = 500;
    scenario.interrupt = std::chrono::milliseconds(30 + 7 * seed);
    std::optional<SavedCheckpoint> checkpoint;
    Total total;
    RunJob(scenario, seed, &total, &checkpoint);
    if (!checkpoint) continue;  // it was interrupted before its first round was closed
    ++resumed;
    scenario.interrupt = {};
    scenario.epochs = checkpoint->state.sampler.epoch.value + 2;
    auto state = JobStateFromJson(ToJson(checkpoint->state));
    ASSERT_TRUE(state.ok()) << state.error().message;
    checkpoint->state = *state;
    scenario.resume = checkpoint;
    RunJob(scenario, seed + 1000, &total);
  }
  EXPECT_GT(resumed, 45u / kShare);
}

}  // namespace
}  // namespace lockstep::coordinator
