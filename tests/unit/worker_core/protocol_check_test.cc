// A coordinator that says what cannot be: the worker ends with one line, whatever it was.
#include "tests/unit/worker_core/machine_fixture.h"

namespace lockstep::worker {
namespace {

constexpr std::uint64_t kTensorBytes = 4096 * sizeof(float);

class ProtocolCheckTest : public ::testing::Test {
 protected:
  static MachineConfig Config() {
    MachineConfig config;
    config.self = kSelf;
    config.term = Term(1);
    config.mapping = false;
    config.queue_capacity = 16;
    config.transports = {"tcp"};
    config.state_tensors = 1;
    config.train_samples = 100;
    config.test_samples = 50;
    config.unit_samples = 8;
    return config;
  }
  static Plan PlanOf(std::uint64_t round) {
    Plan plan;
    plan.round = RoundId(round);
    plan.owners = {1, {{kSelf, 1}, {kPeer, 1}}};
    plan.members = {kSelf, kPeer};
    return plan;
  }
  static Plan PlanWith(Unit unit) {
    Plan plan = PlanOf(0);
    plan.assignments = {{kSelf, {unit}}};
    return plan;
  }
  static msg::Start StartWith(Plan plan) { return {StateSource::kSeed, std::move(plan), 0}; }
  static msg::Commit CommitOf(std::uint64_t round) {
    msg::Commit commit;
    commit.term = Term(1);
    commit.round = RoundId(round);
    commit.parts = {{kPeer, PartIndex(0), 1, 4}};
    commit.owners = {1, {{kSelf, 1}, {kPeer, 1}}};
    commit.members = {kSelf, kPeer};
    return commit;
  }
  static msg::StateChunk Chunk(std::uint32_t tensor, std::uint64_t offset, std::size_t bytes) {
    return {RoundId(0), tensor, offset, false, std::vector<std::byte>(bytes)};
  }

  // What the worker says at its end when it is told all this; nothing: it goes on.
  static std::string EndOf(const std::vector<msg::ToWorker>& messages) {
    StepMachine machine(Config(), Layout({{0, 4096}}, 4 * 4096));
    Time now{std::chrono::seconds(1)};
    for (const msg::ToWorker& message : messages) {
      std::string end;
      bool told = false;
      for (const Action& action : machine.Step(now, event::FromCoordinator{message})) {
        if (const auto* exit = std::get_if<action::Exit>(&action)) {
          EXPECT_TRUE(exit->failed && !exit->not_final.empty());
          end = exit->reason;
        }
        const auto* to = std::get_if<action::ToCoordinator>(&action);
        told = told || (to != nullptr && std::holds_alternative<msg::Leave>(to->message));
      }
      EXPECT_EQ(told, !end.empty());
      if (!end.empty()) return end;
    }
    return {};
  }
  static void Breaks(const std::vector<msg::ToWorker>& messages, const std::string& words) {
    const std::string end = EndOf(messages);
    EXPECT_TRUE(end.starts_with("the coordinator broke the protocol: it ")) << end;
    EXPECT_NE(end.find(words), std::string::npos) << end;
  }
  // The same, after a start.
  static void BreaksAfterStart(msg::ToWorker message, const std::string& words) {
    Breaks({StartWith(PlanOf(0)), std::move(message)}, words);
  }
};

TEST_F(ProtocolCheckTest, StateIsTakenWholeAndInOrder) {
  EXPECT_EQ(EndOf({Chunk(0, 0, kTensorBytes - 4), Chunk(0, kTensorBytes - 4, 4),
                   Chunk(1, 0, kTensorBytes), msg::Start{StateSource::kCheckpoint, PlanOf(3), 0}}),
            "");
  Breaks({Chunk(0, std::uint64_t{1} << 40, 4)}, "tensor 0 byte 1099511627776");
  Breaks({Chunk(0, ~std::uint64_t{0} - 3, 4)}, "of state");
  Breaks({Chunk(2, 0, 4)}, "tensor 2");
  Breaks({Chunk(0, 0, kTensorBytes + 4)}, "of state");
  Breaks({Chunk(0, 0, 3)}, "3 bytes");
  Breaks({Chunk(0, 0, 8), Chunk(0, 4, 8)}, "after tensor 0 byte 8");
  Breaks({Chunk(0, 0, kTensorBytes), Chunk(1, 0, kTensorBytes), Chunk(2, 0, 4)}, "tensor 2");
  Breaks({Chunk(0, 0, kTensorBytes), msg::Start{StateSource::kCheckpoint, PlanOf(3), 0}},
         "came to byte 0");
}

TEST_F(ProtocolCheckTest, TheLastStateIsAskedForBehindARound) {
  msg::Start start{StateSource::kPeers, PlanOf(3), 0};
  start.checkpoint_writer = kSelf;
  EXPECT_EQ(EndOf({StartWith(PlanOf(3)), start}), "");
  Breaks({start}, "wants the last state before round 3");
  start.plan.round = RoundId(0);
  BreaksAfterStart(start, "wants the last state before round 0");
}

TEST_F(ProtocolCheckTest, OneWorkersParametersComeWholeOrAreTheOwn) {
  const msg::Start start{StateSource::kGiven, PlanOf(0), 0};
  EXPECT_EQ(EndOf({Chunk(0, 0, 8), Chunk(0, 0, kTensorBytes), start}), "") << "another one's";
  EXPECT_EQ(EndOf({msg::GiveParameters{1, 0}, start}), "");
  EXPECT_EQ(EndOf({Chunk(0, 0, 8), msg::GiveParameters{2, kTensorBytes}, start}), "");
  Breaks({start}, "came to byte 0");
  Breaks({Chunk(0, 0, 8), start}, "came to byte 8");
  Breaks({Chunk(0, 0, kTensorBytes), Chunk(1, 0, 8), start}, "came to byte 8");
  Breaks({Chunk(0, 0, kTensorBytes), Chunk(1, 0, 8), Chunk(0, 0, 8)}, "after tensor 1 byte 8");
  Breaks({msg::GiveParameters{0, 8}}, "in giving 0");
  Breaks({msg::GiveParameters{1, 6}}, "up to byte 6");
  Breaks({msg::GiveParameters{1, kTensorBytes + 4}}, "up to byte");
  Breaks({msg::GiveParameters{2, 8}, msg::GiveParameters{2, 4}}, "after 8 in 2");
  Breaks({msg::GiveParameters{2, 8}, msg::GiveParameters{1, 16}}, "after 8 in 2");
}

TEST_F(ProtocolCheckTest, UnitsLieInTheData) {
  EXPECT_EQ(EndOf({StartWith(PlanWith({UnitIndex(0), {92, 100}}))}), "");
  Breaks({StartWith(PlanWith({UnitIndex(0), {96, 101}}))}, "[96, 101) of 100 samples");
  Breaks({StartWith(PlanWith({UnitIndex(0), {5, 5}}))}, "[5, 5)");
  Breaks({StartWith(PlanWith({UnitIndex(0), {7, 6}}))}, "[7, 6)");
  Breaks({StartWith(PlanWith({UnitIndex(0), {0, 9}}))}, "at most 8");
  Plan many = PlanOf(0);
  many.assignments = {{kSelf, std::vector<Unit>(17, Unit{UnitIndex(0), {0, 1}})}};
  Breaks({StartWith(many)}, "17 units");
  BreaksAfterStart(msg::Assign{RoundId(0), {{UnitIndex(0), {0, std::uint64_t{1} << 50}}}, 1},
                   "unit");
  msg::Commit commit = CommitOf(0);
  commit.next = PlanOf(1);
  commit.next->assignments = {{kSelf, {{UnitIndex(0), {100, 104}}}}};
  BreaksAfterStart(commit, "[100, 104)");
}

TEST_F(ProtocolCheckTest, RoundsAreOfThisJob) {
  const RoundId far(~std::uint64_t{0});
  EXPECT_EQ(EndOf({StartWith(PlanOf(0)), CommitOf(0)}), "");
  Breaks({CommitOf(0)}, "before the start");
  Breaks({msg::CatchUp{kPeer, RoundId(0)}}, "who has not begun");
  Breaks({StartWith(PlanOf(far.value))}, "speaks of round");
  Breaks({StartWith(PlanOf(0)), StartWith(PlanOf(1))}, "has started");
  BreaksAfterStart(CommitOf(far.value), "speaks of round");
  BreaksAfterStart(msg::CatchUp{kPeer, far}, "speaks of round");
  BreaksAfterStart(msg::CatchUp{kSelf, RoundId(0)}, "from itself");
  BreaksAfterStart(msg::CatchUp{kPeer, RoundId(0), 1, {kOther, kSelf}}, "from itself");
  BreaksAfterStart(msg::Revoke{far, 0, 1}, "speaks of round");
  BreaksAfterStart(msg::FenceRound{far}, "speaks of round");
  BreaksAfterStart(msg::NewOwners{far, {2, {{kPeer, 1}}}}, "speaks of round");
  BreaksAfterStart(msg::FenceAttempt{Term(1), far, Attempt(0)}, "speaks of round");
  BreaksAfterStart(msg::FenceAttempt{Term(2), RoundId(0), Attempt(0)}, "term 2");
  msg::Commit commit = CommitOf(0);
  commit.term = Term(2);
  BreaksAfterStart(commit, "term 2");
  commit = CommitOf(0);
  commit.next = PlanOf(2);
  BreaksAfterStart(commit, "plans round 2");
  BreaksAfterStart(msg::TakeSums{commit, kPeer}, "plans round 2");
  commit = CommitOf(0);
  commit.parts.clear();
  BreaksAfterStart(commit, "over nothing");
  commit.parts = {{kPeer, PartIndex(0), 1, 4}, {kSelf, PartIndex(0), 1, 4}};
  BreaksAfterStart(commit, "out of order");
  commit.parts = {{kPeer, PartIndex(0), 1, 4}, {kPeer, PartIndex(0), 1, 4}};
  BreaksAfterStart(commit, "out of order");
  BreaksAfterStart(msg::Welcome{}, "twice");
  BreaksAfterStart(msg::Followed{}, "what a standby follows");
}

TEST_F(ProtocolCheckTest, OwnersCanBeCutFor) {
  const auto with = [](std::vector<OwnerShare> owners) {
    msg::Commit commit = CommitOf(0);
    commit.owners.owners = std::move(owners);
    return commit;
  };
  BreaksAfterStart(with({}), "0 owners");
  BreaksAfterStart(with({{kSelf, 0}}), "weight 0");
  BreaksAfterStart(with({{kSelf, 1}, {kPeer, 0xffffffff}}), "weight 4294967295");
  BreaksAfterStart(with({{kPeer, 1}, {kSelf, 1}}), "out of order");
  BreaksAfterStart(with({{kSelf, 1}, {kSelf, 1}}), "out of order");
  BreaksAfterStart(msg::NewOwners{RoundId(0), {}}, "0 owners");
  Plan plan = PlanOf(0);
  plan.owners.owners.clear();
  Breaks({StartWith(plan)}, "0 owners");
}

TEST_F(ProtocolCheckTest, EvaluationsLieInTheTestSet) {
  EXPECT_EQ(EndOf({StartWith(PlanOf(0)), msg::Evaluate{1, RoundId(0), {0, 50}}}), "");
  BreaksAfterStart(msg::Evaluate{1, RoundId(0), {40, 51}}, "[40, 51) of 50");
  BreaksAfterStart(msg::Evaluate{1, RoundId(0), {40, 40}}, "[40, 40)");
  std::vector<msg::ToWorker> flood{StartWith(PlanOf(0))};
  flood.resize((1u << 16) + 2, msg::Evaluate{1, RoundId(0), {0, 50}});
  Breaks(flood, "more and more");
}

TEST_F(ProtocolCheckTest, TheTransportIsOneThatWasOffered) {
  EXPECT_EQ(EndOf({msg::Form{1, "tcp", {}, {}}}), "");
  Breaks({msg::Form{1, "ucx", {}, {}}}, "over ucx");
}

TEST_F(ProtocolCheckTest, NoMoreWorkersAreNamedThanAJobHas) {
  std::vector<msg::ToWorker> flood;
  for (std::uint32_t i = 1; i <= 9; ++i) {
    msg::Form form{i, "tcp", {}, {}};
    for (std::uint32_t w = 1; w <= 4000; ++w) {
      form.expect.push_back({{WorkerId(w), Incarnation(i)}, "address", "", "elsewhere"});
    }
    flood.push_back(form);
  }
  Breaks(flood, "more workers");
  flood.clear();
  for (std::uint32_t i = 1; i <= 20'000; ++i) {
    flood.push_back(msg::Form{i, "tcp", {}, {{kPeer, "address", "", "elsewhere"}}});
  }
  Breaks(flood, "more workers");
}

class MembersTest : public MachineTest {};

// Workers that come and go leave nothing behind.
TEST_F(MembersTest, WhoHasLeftIsForgotten) {
  Begin(0);
  for (std::uint32_t i = 2; i < 200; ++i) {
    const MemberId other{WorkerId(1), Incarnation(i)};
    Tell(msg::Form{i, "tcp", {}, {{other, "address", "", "elsewhere"}}});
    if (i % 2 == 0) Do(event::PeerUp{other, "tcp"});
    Tell(msg::MemberLeft{other, "gone"});
    if (i % 2 != 0) continue;
    ASSERT_EQ(All<action::ClosePeer>().size(), 1u);
    Do(event::PeerDown{other, "closed"});
    EXPECT_FALSE(Told<msg::Unreachable>());
  }
  EXPECT_LE(machine_.view().peers, 2u);
}

}  // namespace
}  // namespace lockstep::worker
