// The simulator's parts: virtual time, faults as text and lists, the network, slow-downs.
#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "policies/registry.h"
#include "tools/simulate/compute_model.h"
#include "tools/simulate/computed_run.h"
#include "tools/simulate/data_network.h"
#include "tools/simulate/event_queue.h"
#include "tools/simulate/fault.h"
#include "tools/simulate/fault_job.h"
#include "tools/simulate/fault_runs.h"

namespace lockstep::simulate {
namespace {

constexpr Time kStart{std::chrono::seconds(1)};

TEST(EventQueue, RunsInTheOrderOfTimeThenOfScheduling) {
  EventQueue queue(kStart);
  std::string order;
  const auto note = [&](char c) { return [&order, c] { order += c; }; };
  queue.After(std::chrono::seconds(2), note('d'));
  queue.After(std::chrono::seconds(1), [&] {
    order += 'b';
    queue.After(Duration{}, note('c'));
  });
  queue.After(Duration{}, note('a'));
  queue.After(std::chrono::seconds(2), note('e'));
  while (!queue.empty()) queue.RunNext();
  EXPECT_EQ(order, "abcde");
  EXPECT_EQ(queue.now(), kStart + std::chrono::seconds(2));
  EXPECT_EQ(queue.run(), 5u);
}

TEST(EventQueue, LargeCallablesAndThoseThatNeverRunAreFreed) {
  auto counted = std::make_shared<int>(0);
  {
    EventQueue queue(kStart);
    std::array<char, 4 * Task::kInPlace> large{};
    queue.After(Duration{}, [counted, large] { *counted += 1 + large[0]; });
    queue.After(std::chrono::seconds(1), [counted] { *counted += 100; });
    queue.RunNext();
    EXPECT_EQ(*counted, 1);
    EXPECT_EQ(counted.use_count(), 2);
  }
  EXPECT_EQ(counted.use_count(), 1);
}

TEST(Faults, AreWrittenDownAndReadBack) {
  FaultMix mix;
  mix.crashes = mix.stops = mix.links = mix.coordinator = true;
  mix.until = std::chrono::seconds(20);
  mix.mean_pause = std::chrono::milliseconds(50);
  RandomStream random(3);
  const std::vector<Fault> faults = DrawFaults(mix, 5, random);
  ASSERT_GT(faults.size(), 100u);
  for (const Fault& fault : faults) {
    const auto read = ParseFault(ToString(fault));
    ASSERT_TRUE(read.ok()) << ToString(fault) << ": " << read.error().message;
    EXPECT_EQ(*read, fault) << ToString(fault);
    EXPECT_LE(fault.at, mix.until);
    EXPECT_LT(fault.machine, 5u);
    EXPECT_LT(fault.other, 5u);
  }
  for (const char* same :
       {"crash@Commit_26:1", "crash@Applied_round_3#2+0.000500s:1",
        "partition@TakeSums_of_round_5:0-2,for=1.500000s", "resume@Level#3,for=0.100000s"}) {
    const auto read = ParseFault(same);
    ASSERT_TRUE(read.ok()) << read.error().message;
    EXPECT_EQ(ToString(*read), same);
  }
  for (const char* wrong :
       {"crash@Commit_26#0:1", "crash@Commit_26#x:1", "crash@Commit_26+1:1", "crash@Commit_26+:1",
        "crash@Commit_:1", "crash@#2:1", "crash@Commit_26", "stop@Commit_26:1"}) {
    EXPECT_FALSE(ParseFault(wrong).ok()) << wrong;
  }
  for (const char* wrong : {"", "stop", "stop@1s:2", "stop@1s:2,for=x", "crash@1s", "crash@1s:2-3",
                            "partition@1s:2-2,for=1s", "flood@1s:2"}) {
    EXPECT_FALSE(ParseFault(wrong).ok()) << wrong;
  }
}

TEST(Faults, AMomentIsOfWholeWordsFromTheFirstOn) {
  const Moment moment{"Commit 2", 1};
  EXPECT_TRUE(moment.Matches("Commit 2"));
  EXPECT_TRUE(moment.Matches("Commit 2 attempt 0 (update 3)"));
  EXPECT_FALSE(moment.Matches("Commit 26 attempt 0"));
  EXPECT_FALSE(moment.Matches("Commit"));
  EXPECT_FALSE(moment.Matches("Last Commit 2"));
}

TEST(Shrinking, LeavesTheFaultsThatItTakes) {
  std::vector<Fault> faults(40);
  for (std::uint32_t i = 0; i < faults.size(); ++i) faults[i].machine = i;
  const auto has = [](const std::vector<Fault>& list, std::uint32_t machine) {
    return std::any_of(list.begin(), list.end(),
                       [machine](const Fault& fault) { return fault.machine == machine; });
  };
  int tries = 0;
  const auto left = ShrinkFaults(faults, [&](const std::vector<Fault>& list) {
    ++tries;
    return has(list, 7) && has(list, 31);
  });
  ASSERT_EQ(left.size(), 2u);
  EXPECT_EQ(left[0].machine, 7u);
  EXPECT_EQ(left[1].machine, 31u);
  EXPECT_LT(tries, 40);
  EXPECT_TRUE(ShrinkFaults(faults, [](const std::vector<Fault>&) { return true; }).empty());
}

TEST(ModelNetwork, LinksAreBusyForAsLongAsTheBytesTake) {
  NetworkOptions options;
  options.latency = std::chrono::milliseconds(1);
  options.bytes_per_second = 1000;
  options.slow_links[2] = 100;
  ModelNetwork network(options, 4);
  const auto ms = [](int n) { return kStart + std::chrono::milliseconds(n); };
  EXPECT_EQ(network.Arrival(kStart, 0, 1, 10), ms(11));
  EXPECT_EQ(network.Arrival(kStart, 0, 3, 10), ms(21)) << "the sender's link is busy";
  EXPECT_EQ(network.Arrival(ms(20), 3, 1, 10), ms(31));
  EXPECT_EQ(network.Arrival(ms(20), 0, 1, 10), ms(41)) << "the receiver's link is busy";
  EXPECT_EQ(network.Arrival(ms(100), 0, 2, 10), ms(201)) << "a slow link";
}

TEST(FaultJobs, AllPoliciesAreDrawn) {
  std::set<std::string> names;
  bool counts_itself = false;
  for (std::uint64_t seed = 1; seed <= 400; ++seed) {
    FaultDraw draw;
    draw.seed = seed;
    const FaultJob job = DrawFaultJob(draw);
    names.insert(job.policy.name);
    counts_itself = counts_itself || (job.policy.name.starts_with("backup") &&
                                      job.policy.backup_workers == PolicySection::kAuto);
  }
  for (const std::string& closing : policies::ClosingRuleNames()) {
    for (const std::string& work : policies::WorkRuleNames()) {
      EXPECT_TRUE(names.contains(closing + "+" + work)) << closing << "+" << work;
    }
  }
  for (const char* whole : {"auto", "async", "local+full", "local+backup"}) {
    EXPECT_TRUE(names.contains(whole)) << whole;
  }
  EXPECT_TRUE(counts_itself);
}

TEST(ModelCompute, SlowdownsHoldFromTheirBeginningToTheirEnd) {
  UnitTimeOptions options;
  options.unit_time = std::chrono::milliseconds(10);
  auto spec = ParseSlowdownSpec("worker=1,factor=4,from=10s,for=5s");
  ASSERT_TRUE(spec.ok());
  options.slowdowns = {*spec};
  ModelCompute compute(options, 1, kStart, 2);
  RandomStream random(1);
  const auto at = [&](std::uint32_t worker, int s) {
    return compute.UnitTime(WorkerId(worker), kStart + std::chrono::seconds(s), RoundId(0),
                            Epoch(0), Unit{UnitIndex(0), {0, 8}}, 1, random);
  };
  EXPECT_EQ(at(1, 9), std::chrono::milliseconds(10));
  EXPECT_EQ(at(1, 10), std::chrono::milliseconds(40));
  EXPECT_EQ(at(1, 15), std::chrono::milliseconds(10));
  EXPECT_EQ(at(0, 10), std::chrono::milliseconds(10));
}

TEST(ModelCompute, ARunCostsOnceWhatIsBesideItsUnits) {
  UnitTimeOptions options;
  options.unit_time = std::chrono::milliseconds(10);
  options.run_time = std::chrono::milliseconds(6);
  ModelCompute compute(options, 1, kStart, 2);
  worker::UnitQueue queue(8);
  std::vector<Unit> units;
  for (std::uint32_t i = 0; i < 4; ++i) units.push_back({UnitIndex(i), {i, i + 1}});
  queue.Reset(1, units, {}, {.units = 3});
  RandomStream random(1);
  const auto took = [&](Time* at) {
    const ComputedRun run(queue, queue.TakeNext(), WorkerId(0), RoundId(0), Epoch(0), *at, &compute,
                          random);
    const Duration length = run.end() - *at;
    EXPECT_EQ(run.Timings(run.end()).back().end_ns, run.end().time_since_epoch().count());
    *at = run.end();
    return length;
  };
  Time at = kStart;
  EXPECT_EQ(took(&at), std::chrono::milliseconds(36));
  EXPECT_EQ(took(&at), std::chrono::milliseconds(16));
}

TEST(ModelCompute, AVoidUnitHoldsTheWorkerThroughItsStall) {
  using std::chrono::milliseconds;
  const Unit unit{UnitIndex(0), {0, 8}};
  const auto held = [&](const char* text) {
    UnitTimeOptions options;
    options.unit_time = milliseconds(10);
    auto spec = ParseSlowdownSpec(text);
    EXPECT_TRUE(spec.ok());
    options.slowdowns = {*spec};
    ModelCompute compute(options, 1, kStart, 1);
    RandomStream random(1);
    compute.UnitTime(WorkerId(0), kStart, RoundId(0), Epoch(0), unit, 1, random);
    return *compute.LetsGo(WorkerId(0), RoundId(0), unit, kStart, kStart + milliseconds(15)) -
           kStart;
  };
  EXPECT_EQ(held("factor=100"), milliseconds(15)) << "what is only slow ends at once";
  EXPECT_EQ(held("pattern=slow-worker,p=1,delay=1s"), milliseconds(1000));
  EXPECT_EQ(held("pattern=delay,p=1,times=18"), milliseconds(180));
  EXPECT_EQ(held("pattern=pause,worker=0,every=1s,length=300ms"), milliseconds(300));
  EXPECT_EQ(held("pattern=pause,worker=0,every=1s,length=300ms,from=100ms"), milliseconds(15));
}

}  // namespace
}  // namespace lockstep::simulate
