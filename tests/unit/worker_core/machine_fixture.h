// The machine alone: its coordinator and its one peer are spoken by the test.
#pragma once

#include <gtest/gtest.h>

#include <optional>
#include <utility>
#include <vector>

#include "worker/core/peer_messages.h"
#include "worker/core/step_machine.h"

namespace lockstep::worker {

inline const MemberId kSelf{WorkerId(0), Incarnation(1)};
inline const MemberId kPeer{WorkerId(1), Incarnation(1)};
inline const MemberId kOther{WorkerId(2), Incarnation(1)};

// A peer's sums of its share, under the first owner map, in whatever memory it has.
inline SumReady SumsOf(std::uint64_t round, std::uint32_t generation = 1) {
  SumReady sums;
  sums.term = Term(1);
  sums.round = RoundId(round);
  sums.map_version = 1;
  sums.generation = generation;
  return sums;
}

class MachineTest : public ::testing::Test {
 protected:
  // Of one bucket, unless it is said.
  explicit MachineTest(std::uint64_t bucket_floats = 4096, const MachineConfig& config = Config())
      : machine_(config, Layout({{0, 4096}}, 4 * bucket_floats)) {}

  static MachineConfig Config() {
    MachineConfig config;
    config.self = kSelf;
    config.term = Term(1);
    config.mapping = false;
    config.inline_bytes = 0;
    config.queue_capacity = 16;
    return config;
  }

  void Do(const Event& event) {
    now_ += std::chrono::milliseconds(1);
    actions_ = machine_.Step(now_, event);
    machine_.CheckInvariants();
  }
  void Tell(msg::ToWorker message) { Do(event::FromCoordinator{std::move(message)}); }
  // `floats`: of zeroes, that ride along.
  void PeerSays(const PeerMessage& message, std::uint64_t floats = 0) {
    Says(kPeer, message, floats);
  }
  void Says(const MemberId& peer, const PeerMessage& message, std::uint64_t floats = 0) {
    auto bytes = EncodePeerMessage(message);
    bytes.resize(bytes.size() + floats * sizeof(float));
    Do(event::FromPeer{peer, bytes});
  }

  template <class T>
  std::vector<T> All() const {
    std::vector<T> found;
    for (const Action& action : actions_) {
      if (const auto* a = std::get_if<T>(&action)) found.push_back(*a);
    }
    return found;
  }
  template <class T>
  std::optional<T> Told() const {
    for (const auto& a : All<action::ToCoordinator>()) {
      if (const auto* m = std::get_if<T>(&a.message)) return *m;
    }
    return std::nullopt;
  }
  template <class T>
  std::optional<T> Said() const {
    for (const auto& a : All<action::ToPeer>()) {
      const auto decoded = DecodePeerMessage(a.bytes);
      if (!decoded.ok()) continue;
      if (const auto* m = std::get_if<T>(&decoded->message)) return *m;
    }
    return std::nullopt;
  }

  static std::vector<Unit> Units(std::uint32_t count) {
    std::vector<Unit> units;
    for (std::uint32_t i = 0; i < count; ++i) units.push_back({UnitIndex(i), {i * 4, i * 4 + 4}});
    return units;
  }
  static Plan MakePlan(std::uint64_t round, std::uint32_t units) {
    Plan plan;
    plan.round = RoundId(round);
    plan.owners = {1, {{kSelf, 1}, {kPeer, 1}}};
    plan.members = {kSelf, kPeer};
    if (units > 0) plan.assignments = {{kSelf, Units(units), {.units = 1}}};
    return plan;
  }
  static msg::Commit MakeCommit(std::uint64_t round, std::vector<CommittedPart> parts) {
    msg::Commit commit;
    commit.term = Term(1);
    commit.round = RoundId(round);
    commit.parts = std::move(parts);
    commit.owners = {1, {{kSelf, 1}, {kPeer, 1}}};
    commit.members = {kSelf, kPeer};
    commit.next = MakePlan(round + 1, 1);
    return commit;
  }
  void Begin(std::uint32_t units) {
    Do(event::PeerUp{kPeer, "test"});
    Tell(msg::Start{StateSource::kSeed, MakePlan(0, units), 0});
  }
  // The compute thread takes a run and, where nothing is behind it, begins to seal its part.
  struct Run : UnitQueue::Take {
    std::vector<UnitTiming> units;
    bool last = false;
  };
  Run TakeRun() {
    Run run{{machine_.queue().TakeNext()}, {}};
    EXPECT_EQ(run.kind, UnitQueue::TakeKind::kRun);
    for (std::uint32_t i = 0; i < run.count; ++i) {
      run.units.push_back({machine_.queue().UnitAt(run.position + i), 0, 1});
    }
    run.last = machine_.queue().BeginSeal();
    return run;
  }
  static event::RunDone Done(std::uint32_t work, const Run& run, double loss = 1.0) {
    return {work, run.part, 4 * run.units.size(), loss, run.units};
  }
  // The compute thread does a run, and seals when it was the last.
  void Compute(std::uint32_t work) {
    const Run run = TakeRun();
    Do(Done(work, run));
    if (run.last) Do(event::PartSealed{work, run.part, 2});
  }

  Time now_{std::chrono::seconds(1)};
  StepMachine machine_;
  Actions actions_;
};

}  // namespace lockstep::worker
