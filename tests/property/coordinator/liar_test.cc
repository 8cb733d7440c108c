// Workers are not trusted: some of these say anything at any time, beside what their cores say, and
// do not hear everything. The coordinator survives, closes those it can tell, and counts nothing
// twice; the honest workers, which have only heard what it made of the lies, survive as well.
// A lie goes through the codec, as in a job: what cannot be is refused there, and what the codec
// promises holds for the most malicious, no less and no more.
#include <gtest/gtest.h>

#include <algorithm>
#include <span>
#include <string>

#include "base/interval_set.h"
#include "tools/simulate/recording.h"
#include "tools/simulate/step_worker.h"
#include "transport/control/codec.h"

namespace lockstep::coordinator {
namespace {

using simulate::Cluster;
using simulate::StepWorker;
using simulate::WorkerHost;
using simulate::WorkerModel;

class Liar final : public WorkerModel {
 public:
  Liar(WorkerHost* host, Cluster* cluster) : host_(host), core_(host, cluster) {}
  void OnConnected() override {
    core_.OnConnected();
    Lie();
  }
  void OnKilled() override { core_.OnKilled(); }
  void OnMessage(const msg::ToWorker& message) override {
    if (const auto* start = std::get_if<msg::Start>(&message)) Learn(start->plan);
    if (const auto* commit = std::get_if<msg::Commit>(&message)) {
      round_ = commit->round.value;
      if (commit->next) Learn(*commit->next);
    }
    if (const auto* welcome = std::get_if<msg::Welcome>(&message)) self_ = welcome->self;
    // Sometimes it does not hear, either.
    if (Below(20) != 0) core_.OnMessage(message);
  }

 private:
  // A good lie is nearly true: it names units that there are.
  void Learn(const Plan& plan) {
    planned_ = {plan.round, plan.attempt};
    units_.clear();
    for (const Assignment& assignment : plan.assignments) {
      units_.insert(units_.end(), assignment.units.begin(), assignment.units.end());
    }
  }
  msg::Sealed SealSomebodysUnits() {
    msg::Sealed sealed;
    sealed.round = planned_.first;
    sealed.plan = planned_.second;
    sealed.part = PartIndex(static_cast<std::uint8_t>(Below(2)));
    for (std::uint64_t i = 1 + Below(2); i > 0; --i) {
      const auto [start, end] = std::minmax({Nanoseconds(), Nanoseconds()});
      sealed.units.push_back({units_[Below(units_.size())], start, end});
      sealed.samples += sealed.units.back().unit.range.size();
    }
    return sealed;
  }
  std::uint64_t Below(std::uint64_t bound) { return host_->random().NextBelow(bound); }
  std::uint64_t Odd() { return Below(4) == 0 ? host_->random().NextWord() : Below(6); }
  // Any time that a clock may show, or one beyond.
  std::int64_t Nanoseconds() { return static_cast<std::int64_t>(Odd() >> 3); }
  RoundId Round() {
    return RoundId(Below(8) == 0 ? host_->random().NextWord() : round_ + Below(3));
  }
  MemberId Somebody() {
    if (Below(3) == 0) return self_;
    return {WorkerId(static_cast<std::uint32_t>(Odd())),
            Incarnation(static_cast<std::uint32_t>(Below(3)))};
  }
  PartIndex Part() { return PartIndex(static_cast<std::uint8_t>(Odd())); }
  SampleRange Range() {
    const auto [from, to] = std::minmax({Odd(), Odd()});
    return {from, to};
  }
  std::uint32_t Small() { return static_cast<std::uint32_t>(Odd()); }

  msg::FromWorker Anything() {
    if (!units_.empty() && Below(3) == 0) return SealSomebodysUnits();
    switch (Below(27)) {
      case 0:
        return msg::Hello{};
      case 1:
        return msg::Ready{{{"tcp", "a", ""}}, "", "d1", Odd(), Odd(), Odd(), Small(), {}, {}, {}};
      case 2:
        return msg::Reached{Small(), {{Somebody(), Below(2) == 0, "", Below(2) == 0, "", 0}}};
      case 3:
        return msg::Progress{Round(), Small(), Small()};
      case 4: {
        msg::Sealed sealed{Round(), Part(), Odd(), 0, {}, Nanoseconds()};
        for (std::uint64_t i = Below(4); i > 0; --i) {
          const auto [start, end] = std::minmax({Nanoseconds(), Nanoseconds()});
          sealed.units.push_back({{UnitIndex(Small()), Range()}, start, end});
          sealed.samples += sealed.units.back().unit.range.size();
        }
        return sealed;
      }
      case 5:
        return msg::Receipts{Round(), Small(), {{Somebody(), Part()}, {Somebody(), Part()}}};
      case 6:
        return msg::Revoked{Round(), Small(), Small(), Small() % 2 == 0};
      case 7:
        return msg::Published{Round(), Attempt(Small()),
                              Below(2) == 0 ? std::optional(WorkerId(Small())) : std::nullopt};
      case 8:
        return msg::Applied{Round(), Attempt(Small()), Small(), Odd(), Nanoseconds()};
      case 9:
        return msg::HoldAnswer{Term(Small()), Round(), Attempt(Small()), Below(2) == 0, Small()};
      case 10:
        return msg::Behind{Round(), Below(2) == 0, "a lie", Small()};
      case 11:
        return msg::Level{Round(), Small()};
      case 12:
        return msg::Unreachable{Somebody(), "a lie"};
      case 13:
        return msg::EvaluationResult{Small(), Range(), 0, Odd()};
      case 14:
        return msg::StateChunk{Round(), Small(), Odd(), Below(2) == 0,
                               std::vector<std::byte>(Below(9))};
      case 15:
        return msg::Final{Round(), "a lie"};
      case 16:
        return msg::Leave{"a lie"};
      case 17:
        return msg::Copied{Small(), Odd()};
      case 18:
        return msg::CheckpointTaken{Odd()};
      case 19:
        return msg::ReplicaDigest{Round(), Attempt(Small()), {Odd(), Odd()}};
      case 20:
        return msg::StopAsked{"a lie"};
      case 21:
        return msg::NotFinite{Round(), Attempt(Small()), {Odd(), Odd()}};
      case 22:
        return msg::Away{Nanoseconds(), "a lie"};
      case 23:
        return msg::Back{};
      case 25:
        return msg::Costs{Epoch(Small()), Odd(), 1, std::vector<std::byte>(2 * Below(9) + 2)};
      case 24:
        return msg::Given{Small(), 4 * Small(), std::vector<std::byte>(4 * Below(3))};
      default:
        return msg::Pong{Odd(), Nanoseconds(), Nanoseconds()};
    }
  }
  void Lie() {
    host_->After(std::chrono::microseconds(100 + Below(30000)), [this] {
      const std::string bytes = transport::control::Encode(Anything());
      const auto lie = transport::control::DecodeFromWorker(std::as_bytes(std::span(bytes)));
      if (lie) host_->Send(*lie);
      Lie();
    });
  }

  WorkerHost* host_;
  StepWorker core_;
  MemberId self_;
  std::uint64_t round_ = 0;
  std::pair<RoundId, Attempt> planned_;
  std::vector<Unit> units_;  // of that plan, whoever has them
};

constexpr std::uint64_t kTrainSamples = 500;

TEST(Liars, AreSurvived) {
  std::size_t rounds = 0;
  for (std::uint64_t seed = 1; seed <= 150; ++seed) {
    Cluster::Options options;
    options.hosts = seed % 2 == 0 ? 1 : 0;
    options.train_samples = kTrainSamples;
    options.test_samples = 64;
    options.own_parameters = seed % 5 == 0;
    options.whole_checkpoints = options.own_parameters;
    simulate::RandomNetwork network(seed);
    simulate::EvenCompute compute(std::chrono::milliseconds(2), {}, 1);
    Cluster cluster(options, worker::Layout({{0, 1000}}, 4096), &network, &compute,
                    [](const MemberId&) { return std::make_shared<simulate::NoNumbers>(); });
    StartParameters start;
    start.workers = 4;
    start.config.job.epochs = 3;
    start.config.job.global_batch = 40;
    start.config.job.min_workers = 1;
    start.config.policy.name = seed % 3 == 0 ? "backup" : "full";
    start.config.liveness.timeout_s = 0.3;
    start.given_under_way = 600;
    simulate::Simulation simulation(start, seed, {},
                                    [&](WorkerHost* host) -> std::unique_ptr<WorkerModel> {
                                      // The first two machines are honest; the others are not.
                                      if (host->machine() < 2)
                                        return std::make_unique<StepWorker>(host, &cluster);
                                      return std::make_unique<Liar>(host, &cluster);
                                    });
    simulate::Recording recording;
    recording.Attach(&simulation);
    simulation.hooks.on_log = [seed](const LogLine& line) {
      // Whatever the others say, the honest are told nothing that cannot be.
      const bool honest = line.text.starts_with("worker 0 ") || line.text.starts_with("worker 1 ");
      if (!honest) return;
      EXPECT_EQ(line.text.find("the coordinator broke the protocol"), std::string::npos)
          << "seed " << seed << ": " << line.text;
    };
    for (int i = 0; i < 4; ++i) simulation.AddWorker(std::chrono::milliseconds(i));
    simulation.Run(simulation.now() + std::chrono::seconds(5));
    IntervalSet counted;
    std::optional<Epoch> epoch;
    for (const auto& record : recording.records) {
      if (epoch && record->epoch != *epoch) {
        EXPECT_EQ(counted.positions(), kTrainSamples) << "seed " << seed;
        counted = {};
      }
      epoch = record->epoch;
      for (const ContributorRecord& contributor : record->contributors) {
        for (const SampleRange& range : contributor.ranges) {
          ASSERT_TRUE(counted.Add(range)) << "seed " << seed;
        }
      }
    }
    rounds += recording.records.size();
  }
  EXPECT_GT(rounds, 300u) << "the lies end every job before it has begun: the test tests nothing";
}

}  // namespace
}  // namespace lockstep::coordinator
