// Whole jobs: the real coordinator and real step machines with real memory, under random delays,
// stops and kills. Each update of each worker is compared, bit by bit, with what the commit comes
// to when it is computed in one place. A failing seed is run again alone with LOCKSTEP_SEED=n;
// LOCKSTEP_SEEDS=n runs that many.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "tests/property/coordinator/simulation.h"
#include "tests/property/random_policy.h"
#include "tests/property/worker/harness.h"

namespace lockstep::worker::sim {
namespace {

using coordinator::Faults;
using coordinator::Simulation;

// Puts a SimWorker into the coordinator's simulation.
class Process final : public coordinator::WorkerModel, public Host {
 public:
  Process(coordinator::WorkerHost* host, World* world) : host_(host), world_(world) {}

  void OnStart() override {
    Hello hello;
    hello.version = "test";
    hello.host = "host";
    hello.pid = host_->slot_hint();
    hello.device = "cpu";
    hello.wanted = host_->wanted();
    hello.host_id = HostId();
    host_->Send(hello);
  }
  void OnMessage(const ToWorker& message) override {
    worker_.OnMessage(message);
    if (const auto* welcome = std::get_if<Welcome>(&message)) {
      host_->SetSelf(welcome->self);
      Ready ready;
      ready.transports.push_back({"tcp", "address", ""});
      ready.mapping_address = "arena";
      ready.dataset_digest = "d1";
      ready.train_samples = 700;
      ready.test_samples = 900;
      ready.parameter_count = world_->layout.parameter_count();
      ready.state_tensors = 1;
      host_->Send(ready);
    }
  }
  void OnKilled() override { worker_.Kill(); }

  void Send(FromWorker message) override { host_->Send(std::move(message)); }
  void After(Duration delay, std::function<void()> action) override {
    host_->After(delay, std::move(action));
  }
  RandomStream& random() override { return host_->random(); }
  Time now() const override { return host_->now(); }

 private:
  std::string HostId() const {
    return fmt::format("{}", host_->slot_hint() % std::max(1u, world_->options.hosts));
  }

  coordinator::WorkerHost* host_;
  World* world_;
  SimWorker worker_{world_, this, HostId()};
};

struct Scenario {
  std::uint32_t workers = 4;
  PolicySection policy;
  std::uint32_t global_batch = 64;
  std::uint32_t epochs = 3;
  WorldOptions world;
  Faults faults;
};

Scenario RandomScenario(std::uint64_t seed) {
  RandomStream random(seed, 5);
  Scenario s;
  s.workers = static_cast<std::uint32_t>(1 + random.NextBelow(6));
  s.policy = RandomPolicy(&random, s.workers);
  s.global_batch = static_cast<std::uint32_t>(s.workers + random.NextBelow(80));
  // Blocks in model order, finished from the last to the first, or the other way round.
  std::uint64_t at = 0;
  const std::uint64_t blocks = 1 + random.NextBelow(5);
  for (std::uint64_t b = 0; b < blocks; ++b) {
    const std::uint64_t count = 1 + random.NextBelow(random.NextBelow(3) == 0 ? 5000 : 900);
    s.world.blocks.push_back({at, count});
    at += count;
  }
  if (random.NextBelow(2) == 0) std::reverse(s.world.blocks.begin(), s.world.blocks.end());
  s.world.bucket_bytes = 4096 * (1 + random.NextBelow(4));
  s.world.hosts = static_cast<std::uint32_t>(random.NextBelow(3));
  s.world.machine.piece_bytes = 1024 * (1 + random.NextBelow(8));
  s.world.machine.fetch_window = static_cast<std::uint32_t>(1 + random.NextBelow(4));
  s.world.machine.inline_bytes = std::array<std::uint64_t, 3>{0, 2048, 32768}[random.NextBelow(3)];
  s.world.machine.clip = random.NextBelow(2) == 0 ? 0.0 : 0.05;
  s.world.machine.queue_capacity = 256;
  s.world.machine.chunk_bytes = 5000;
  s.world.machine.formation_timeout = std::chrono::seconds(2);
  if (random.NextBelow(2) == 0) {
    s.world.slow.insert(static_cast<std::uint32_t>(random.NextBelow(s.workers)));
  }
  return s;
}

std::string Log(const Simulation& simulation) {
  std::string text;
  for (const auto& member : simulation.coordinator().Status(simulation.now()).members) {
    text += fmt::format("worker {} ({}) {}: {} of {} units{}\n", member.member.worker,
                        member.member.incarnation, Name(member.state), member.units_done,
                        member.units_given, member.owner ? ", owner" : "");
  }
  const auto& log = simulation.log();
  const std::size_t first = log.size() > 60 ? log.size() - 60 : 0;
  for (std::size_t i = first; i < log.size(); ++i) text += log[i] + "\n";
  return text;
}

// What all runs of a test came to together.
struct Total {
  std::uint64_t applied = 0, caught_up = 0, fetched = 0, inlined = 0, read_in_place = 0;
  std::map<std::string, std::uint64_t> counts;
};

void RunJob(const Scenario& scenario, std::uint64_t seed, Total* total) {
  SCOPED_TRACE(fmt::format("LOCKSTEP_SEED={}", seed));
  coordinator::StartParameters start;
  start.workers = scenario.workers;
  start.config.job.epochs = scenario.epochs;
  start.config.job.global_batch = scenario.global_batch;
  start.config.job.min_workers = 1;
  start.config.policy = scenario.policy;
  start.config.liveness.timeout_s = 2;
  start.config.exchange.mapping = scenario.world.hosts > 0 ? "auto" : "off";
  start.job_id = "job";

  World world(scenario.world);
  Simulation simulation(start, seed, [&world](coordinator::WorkerHost* host) {
    return std::make_unique<Process>(host, &world);
  });
  simulation.on_send = [&world](const ToWorker& message) {
    if (const auto* commit = std::get_if<Commit>(&message)) world.OnCommit(*commit);
    if (const auto* take = std::get_if<TakeSums>(&message)) world.OnCommit(take->commit);
    if (std::holds_alternative<TakeSums>(message)) world.counts["take sums"]++;
    if (std::holds_alternative<FenceAttempt>(message)) world.counts["fence"]++;
    if (std::holds_alternative<CatchUp>(message)) world.counts["catch up"]++;
    if (std::holds_alternative<NewOwners>(message)) world.counts["new owners"]++;
  };
  for (std::uint32_t i = 0; i < scenario.workers; ++i) {
    simulation.AddWorker(std::nullopt, std::chrono::milliseconds(i));
  }
  if (scenario.faults.until > Time{}) simulation.SetFaults(scenario.faults);
  const Time until = std::max(simulation.now(), scenario.faults.until) + std::chrono::minutes(5);
  const bool finished = simulation.Run(until);
  std::string views;
  for (const auto& [id, worker] : world.alive) {
    const StepMachine::View view = worker->machine().view();
    views += fmt::format("worker {}.{} round {}{}, {} fetches, {} queued, {} pins: waits for {}\n",
                         id.worker, id.incarnation, view.next, view.level ? "" : " (not level)",
                         view.fetches, view.queued, view.pins, view.waiting_for);
  }
  ASSERT_TRUE(finished) << views << simulation.coordinator().Status(simulation.now()).waiting_for
                        << "\n"
                        << Log(simulation);
  for (const std::string& error : world.errors) ADD_FAILURE() << error;
  if (!world.errors.empty()) FAIL() << Log(simulation);
  total->applied += world.applied;
  total->caught_up += world.caught_up;
  total->fetched += world.fetched;
  total->inlined += world.inlined;
  total->read_in_place += world.read_in_place;
  for (const auto& [name, count] : world.counts) total->counts[name] += count;
  const auto& result = *simulation.result();
  if (result.reason.starts_with("no worker holds") ||
      result.reason.starts_with("all workers left") ||
      result.reason.find("cannot reach") != std::string::npos) {
    EXPECT_TRUE(scenario.faults.kills || scenario.faults.stops) << Log(simulation);
    return;
  }
  EXPECT_EQ(Name(result.outcome), Name(coordinator::JobOutcome::kCompleted))
      << result.reason << "\n"
      << Log(simulation);
  EXPECT_TRUE(result.digest_differs.empty());
  EXPECT_GT(world.applied, 0u);
}

template <class Change>
Total RunSeeds(std::uint64_t count, Change change) {
  const char* only = std::getenv("LOCKSTEP_SEED");
  const std::uint64_t first = only != nullptr ? std::strtoull(only, nullptr, 10) : 1;
  const char* many = std::getenv("LOCKSTEP_SEEDS");
  if (many != nullptr) count = std::strtoull(many, nullptr, 10);
  const std::uint64_t last = only != nullptr ? first : count;
  Total total;
  for (std::uint64_t seed = first; seed <= last && !::testing::Test::HasFailure(); ++seed) {
    Scenario scenario = RandomScenario(seed);
    change(&scenario);
    RunJob(scenario, seed, &total);
  }
  fmt::print("{} updates compared, {} catch-ups, {} pieces fetched, {} inlined, {} read in place",
             total.applied, total.caught_up, total.fetched, total.inlined, total.read_in_place);
  for (const auto& [name, n] : total.counts) fmt::print(", {} {}", n, name);
  fmt::print("\n");
  return total;
}

TEST(Network, WithoutFaults) {
  const Total total = RunSeeds(60, [](Scenario*) {});
  EXPECT_EQ(total.caught_up, 0u);
  EXPECT_GT(total.fetched, 0u);
  EXPECT_GT(total.inlined, 0u);
  EXPECT_GT(total.read_in_place, 0u);
}

TEST(Network, WithStops) {
  RunSeeds(60, [](Scenario* s) {
    s->faults = {.stops = true, .until = Time(std::chrono::seconds(6))};
    s->epochs += 8;
  });
}

TEST(Network, WithKillsAndStops) {
  const Total total = RunSeeds(120, [](Scenario* s) {
    s->faults = {.kills = true, .stops = true, .until = Time(std::chrono::seconds(8))};
    s->epochs += 12;
  });
  EXPECT_GT(total.caught_up, 0u);
}

TEST(Network, WithEverything) {
  RunSeeds(120, [](Scenario* s) {
    s->faults = {.kills = true,
                 .stops = true,
                 .coordinator_stops = true,
                 .until = Time(std::chrono::seconds(10))};
    s->epochs += 12;
  });
}

}  // namespace
}  // namespace lockstep::worker::sim
