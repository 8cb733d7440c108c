// What a worker saves when no coordinator takes over becomes a checkpoint where the journal tells
// of it, and is left alone with one line where not.

#include "worker/runtime/rescue.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "coordinator/checkpoint/checkpoint_reader.h"
#include "coordinator/checkpoint/checkpoint_store.h"
#include "coordinator/journal/journal.h"
#include "coordinator/journal/rescue.h"
#include "coordinator/record/whole_file.h"
#include "coordinator/record/write_json.h"
#include "tests/temp_folder.h"
#include "worker/memory/host_memory.h"

namespace lockstep::worker {
namespace {

namespace fs = std::filesystem;
using coordinator::AdoptRescue;
using coordinator::CheckpointStore;
using coordinator::JournalEntry;
using coordinator::JournalFile;
using coordinator::RoundRecord;
using coordinator::RunDirectory;
using testing::HasSubstr;
using testing::StartsWith;

RoundRecord Record(std::uint64_t round) {
  RoundRecord record;
  record.round = RoundId(round);
  record.policy = "full";
  record.samples = 10;
  record.contributors = {{.worker = WorkerId(0),
                          .part = PartIndex(0),
                          .weight = 1,
                          .samples = 10,
                          .ranges = {{10 * round, 10 * round + 10}}}};
  return record;
}

// The state after so many rounds of 10 samples, in an epoch of 100.
JournalEntry Entry(std::uint64_t next, std::uint32_t attempt = 0) {
  JournalEntry entry;
  entry.term = Term(1);
  entry.attempt = Attempt(attempt);
  coordinator::JobState& state = entry.state;
  state.next_round = RoundId(next);
  state.updates = next;
  state.sampler = {100, Epoch(0), {{10 * next, 100}}};
  state.totals.rounds = next;
  state.totals.samples_counted = 10 * next;
  state.dataset_digest = "abc";
  state.parameter_count = 6;
  state.state_tensors = 1;
  state.tensors = {{"w", {2, 2}}, {"b", {2}}};
  state.state_names = {"momentum"};
  state.settings = {{"policy.name", "full"}};
  entry.record = std::make_shared<RoundRecord>(Record(next - 1));
  return entry;
}

// A coordinator was killed after the commit of round 2; it had closed rounds 0 and 1.
class RescueTest : public testing::Test {
 protected:
  void SetUp() override {
    auto directory = RunDirectory::Open(run_, false);
    ASSERT_TRUE(directory.ok()) << directory.error().message;
    for (std::uint64_t round : {0, 1}) {
      ASSERT_TRUE((*directory)->AppendRound(RoundLine(Record(round))).ok());
    }
    auto journal = JournalFile::Begin(run_, {"run", Term(1), {}}, false);
    ASSERT_TRUE(journal.ok()) << journal.error().message;
    for (std::uint64_t next : {1, 2, 3}) ASSERT_TRUE((*journal)->Append(Entry(next)).ok());
  }

  RescueState StateOf(const HeldParameters& held, std::uint32_t worker = 0) {
    return {.run_dir = run_.string(),
            .run_id = "run",
            .worker = WorkerId(worker),
            .held = held,
            .parameters = 6,
            .tensors = {parameters_.data(), momentum_.data()},
            .state_names = {"momentum"},
            .memory = &memory_};
  }
  std::string Save(const RescueState& state) {
    const auto saved = SaveRescue(state);
    return saved ? *saved : "not: " + saved.error().message;
  }
  coordinator::Rescue Adopt() {
    auto directory = RunDirectory::Open(run_, true);
    EXPECT_TRUE(directory.ok()) << directory.error().message;
    return AdoptRescue(**directory, 2);
  }
  std::optional<CheckpointStore::Loaded> Newest() const {
    auto newest = CheckpointStore(run_ / "checkpoints", 2).Newest();
    EXPECT_TRUE(newest.ok()) << newest.error().message;
    return *newest;
  }
  // That it is refused for this, stays, and that nothing came of it.
  void ExpectRefused(const std::string& why) {
    const auto rescue = Adopt();
    EXPECT_FALSE(rescue.used);
    EXPECT_THAT(rescue.line, StartsWith(file_.string()));
    EXPECT_THAT(rescue.line, HasSubstr(why));
    EXPECT_THAT(rescue.line,
                HasSubstr("; the parameters that workers have saved there are not used"));
    EXPECT_TRUE(fs::exists(file_));
    EXPECT_TRUE(fs::is_empty(run_ / "checkpoints"));
  }

  test::TempFolder folder_;
  const fs::path run_ = folder_ / "run";
  const fs::path file_ = run_ / "rescue.safetensors";
  std::array<float, 6> parameters_ = {1, 2, 3, 4, 5, 6};
  std::array<float, 6> momentum_ = {-1, -2, -3, -4, -5, -6};
  HostMemory memory_;
};

TEST_F(RescueTest, BecomesACheckpointWithTheModelsNames) {
  EXPECT_THAT(Save(StateOf(Entry(3).held(), 1)),
              HasSubstr("the parameters before round 3 are saved in " + file_.string() +
                        ", by this worker"));
  const auto rescue = Adopt();
  EXPECT_TRUE(rescue.used) << rescue.line;
  EXPECT_EQ(rescue.line,
            "the parameters that worker 1 has saved are the checkpoint after round 2 now");
  EXPECT_FALSE(fs::exists(file_));
  const auto newest = Newest();
  ASSERT_TRUE(newest);
  EXPECT_EQ(newest->state.next_round, RoundId(3));
  EXPECT_EQ(newest->state.totals.samples_counted, 30u);
  EXPECT_EQ(newest->state.sampler, Entry(3).state.sampler);
  auto reader = coordinator::CheckpointReader::Open(newest->tensors, newest->state);
  ASSERT_TRUE(reader.ok()) << reader.error().message;
  std::vector<float> values;
  while (reader->read() < reader->total()) {
    const auto chunk = reader->Next(1u << 20);
    ASSERT_TRUE(chunk.ok());
    const auto* from = reinterpret_cast<const float*>(chunk->bytes.data());
    values.insert(values.end(), from, from + chunk->bytes.size() / sizeof(float));
  }
  EXPECT_EQ(values, (std::vector<float>{1, 2, 3, 4, 5, 6, -1, -2, -3, -4, -5, -6}));
  // Round 2 was committed and not yet closed: its record comes from the journal.
  std::ifstream rounds(run_ / "rounds.jsonl");
  EXPECT_EQ(std::count(std::istreambuf_iterator<char>(rounds), {}, '\n'), 3);
  EXPECT_EQ(Adopt().line, "");
}

// Nobody had the last commit: the round before it stands, as with workers that live.
TEST_F(RescueTest, AnOlderEntryOfTheJournalCountsToo) {
  Save(StateOf(Entry(2).held()));
  EXPECT_TRUE(Adopt().used);
  EXPECT_EQ(Newest()->state.next_round, RoundId(2));
}

TEST_F(RescueTest, WhatTheJournalDoesNotTellOfIsRefused) {
  Save(StateOf(Entry(3, 1).held()));
  ExpectRefused(
      "the journal does not tell of its parameters (term 1, round 3, attempt 1), and its last "
      "entry is another one (term 1, round 3, attempt 0)");
}

TEST_F(RescueTest, ADamagedFileIsRefused) {
  Save(StateOf(Entry(3).held()));
  {
    std::fstream file(file_, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(-1, std::ios::end);
    file.put('\1');
  }
  ExpectRefused("its values are not those that were written");
  fs::resize_file(file_, fs::file_size(file_) - 1);
  ExpectRefused("");
  fs::resize_file(file_, 0);
  ExpectRefused("");
}

TEST_F(RescueTest, ValuesThatAreNotFiniteAreRefused) {
  momentum_[3] = std::numeric_limits<float>::quiet_NaN();
  Save(StateOf(Entry(3).held()));
  ExpectRefused("it has values that are not finite");
}

TEST_F(RescueTest, ACheckpointAsNewTakesItsPlace) {
  Save(StateOf(Entry(3).held()));
  EXPECT_TRUE(Adopt().used);
  Save(StateOf(Entry(2).held()));
  const auto rescue = Adopt();
  EXPECT_EQ(rescue.line, file_.string() + ": removed, for the checkpoint after round 2 is as new");
  EXPECT_FALSE(fs::exists(file_));
  EXPECT_EQ(Newest()->state.next_round, RoundId(3));
}

TEST_F(RescueTest, ADirectoryOfAnotherJobIsLeftAlone) {
  RescueState state = StateOf(Entry(3).held());
  state.run_id = "another";
  EXPECT_THAT(Save(state), HasSubstr("is not the run directory of this job"));
  state.run_dir = folder_ / "nowhere";
  EXPECT_THAT(Save(state), HasSubstr("this worker does not reach the run directory"));
  EXPECT_FALSE(fs::exists(file_));
}

TEST_F(RescueTest, OneOfSeveralWrites) {
  std::array<std::string, 4> said;
  std::vector<std::thread> workers;
  for (std::uint32_t w = 0; w < said.size(); ++w) {
    workers.emplace_back([&, w] { said[w] = Save(StateOf(Entry(3).held(), w)); });
  }
  for (std::thread& worker : workers) worker.join();
  EXPECT_EQ(std::ranges::count_if(
                said, [](const std::string& line) { return line.ends_with("by this worker"); }),
            1);
  for (const std::string& line : said)
    EXPECT_THAT(line, StartsWith("the parameters before round 3"));
}

TEST_F(RescueTest, TheNewestParametersStay) {
  Save(StateOf(Entry(2).held(), 0));
  EXPECT_THAT(Save(StateOf(Entry(3).held(), 1)), HasSubstr("by this worker"));
  EXPECT_THAT(
      Save(StateOf(Entry(2).held(), 2)),
      HasSubstr("the parameters before round 3 are saved in " + file_.string() + ", by worker 1"));
}

TEST_F(RescueTest, OnAFullDiskNothingIsLeft) {
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  auto* handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit full{300, before.rlim_max};
  setrlimit(RLIMIT_FSIZE, &full);
  const std::string said = Save(StateOf(Entry(3).held()));
  setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  EXPECT_THAT(said, HasSubstr("not: "));
  EXPECT_THAT(said, HasSubstr("cannot be written: File too large"));
  EXPECT_FALSE(fs::exists(file_));
  EXPECT_FALSE(fs::exists(file_.string() + ".partial"));
}

TEST_F(RescueTest, TheEndOfTheJobIsSeen) {
  EXPECT_EQ(EndOfJob(run_.string(), "run"), JobEnd::kUnknown);
  for (const auto outcome : {coordinator::JobOutcome::kCompleted, coordinator::JobOutcome::kFailed,
                             coordinator::JobOutcome::kInterrupted}) {
    coordinator::JobResult result;
    result.outcome = outcome;
    std::ofstream(run_ / "summary.json") << coordinator::SummaryText(result);
    EXPECT_EQ(EndOfJob(run_.string(), "run"),
              outcome == coordinator::JobOutcome::kCompleted ? JobEnd::kCompleted : JobEnd::kEnded);
  }
  EXPECT_EQ(EndOfJob(run_.string(), "another"), JobEnd::kUnknown);
  EXPECT_EQ(EndOfJob("", "run"), JobEnd::kUnknown);
}

// --- the last decision, for workers that have not heard of it

class DecidedTest : public RescueTest {
 protected:
  void Append(JournalEntry entry, bool decided) {
    entry.decided = decided;
    auto contents = JournalFile::Read(run_);
    ASSERT_TRUE(contents.ok()) << contents.error().message;
    auto journal = JournalFile::Begin(run_, *contents, false);
    ASSERT_TRUE(journal.ok()) << journal.error().message;
    ASSERT_TRUE((*journal)->Append(entry).ok());
  }
  std::optional<HeldParameters> Decided() const { return DecidedInJournal(run_.string(), "run"); }
};

TEST_F(DecidedTest, IsThatOfTheLastEntry) {
  EXPECT_EQ(Decided(), std::nullopt);
  Append(Entry(4, 2), true);
  EXPECT_EQ(Decided(), Entry(4, 2).held());
  Append(Entry(5), false);
  EXPECT_EQ(Decided(), std::nullopt);
  JournalEntry quoted = Entry(5);
  quoted.slowdowns = R"("decided":true)";
  Append(quoted, false);
  EXPECT_EQ(Decided(), std::nullopt);
  quoted.policy = R"("next_round":7,"term":9,"attempt":4)";
  Append(quoted, true);
  EXPECT_EQ(Decided(), Entry(5).held());
}

TEST_F(DecidedTest, WhatWasCutOffOrDamagedCountsForNothing) {
  Append(Entry(4, 2), true);
  std::ofstream(run_ / "journal", std::ios::app) << "0123 {\"attempt\":3,\"dec";
  EXPECT_EQ(Decided(), Entry(4, 2).held());
  std::ofstream(run_ / "journal", std::ios::app) << "ided\":true}\n";
  EXPECT_EQ(Decided(), std::nullopt);
  fs::resize_file(run_ / "journal", 20);
  EXPECT_EQ(Decided(), std::nullopt);
  fs::remove(run_ / "journal");
  EXPECT_EQ(Decided(), std::nullopt);
}

TEST_F(DecidedTest, AnotherJobsIsNotRead) {
  Append(Entry(4), true);
  EXPECT_EQ(DecidedInJournal(run_.string(), "another"), std::nullopt);
  EXPECT_EQ(DecidedInJournal(run_.string(), ""), std::nullopt);
  EXPECT_EQ(DecidedInJournal("", "run"), std::nullopt);
}

// --- shards: each of three workers has two of the three

class RescueShardsTest : public RescueTest {
 protected:
  RescueState ShardsOf(const HeldParameters& held, std::uint32_t worker) {
    RescueState state = StateOf(held, worker);
    state.shards_in_all = 3;
    for (const std::uint32_t shard : {worker, (worker + 1) % 3}) {
      state.shards.push_back({shard, {{2 * shard, 1}, {2 * shard + 1, 1}}});
    }
    // What it does not hold is nothing that anybody should see.
    const std::uint64_t lacks = 2 * ((worker + 2) % 3);
    for (auto* tensor : {&own_parameters_[worker], &own_momentum_[worker]}) {
      *tensor = tensor == &own_parameters_[worker] ? parameters_ : momentum_;
      (*tensor)[lacks] = (*tensor)[lacks + 1] = std::nanf("");
    }
    state.tensors = {own_parameters_[worker].data(), own_momentum_[worker].data()};
    return state;
  }
  std::array<std::array<float, 6>, 3> own_parameters_;
  std::array<std::array<float, 6>, 3> own_momentum_;
};

TEST_F(RescueShardsTest, ThoseOfAllWorkersAreOneFile) {
  const HeldParameters held = Entry(3).held();
  EXPECT_THAT(Save(ShardsOf(held, 0)), HasSubstr("2 of 3 shards of the state before round 3"));
  EXPECT_FALSE(fs::exists(file_));
  EXPECT_THAT(Save(ShardsOf(held, 1)), HasSubstr("the parameters before round 3 are saved in"));
  EXPECT_THAT(Save(ShardsOf(held, 2)), HasSubstr("by worker 1"));
  const auto rescue = Adopt();
  EXPECT_TRUE(rescue.used) << rescue.line;
  // It is that of a worker which has everything.
  ASSERT_TRUE(Newest());
  const Digest128 digest = Newest()->state.digest;
  DigestStream whole;
  whole.Update(std::as_bytes(std::span(parameters_)));
  whole.Update(std::as_bytes(std::span(momentum_)));
  EXPECT_EQ(digest, whole.Digest());
  for (const auto& entry : fs::directory_iterator(run_)) {
    EXPECT_FALSE(entry.path().filename().string().starts_with("rescue") &&
                 entry.path().filename() != "rescue.lock")
        << entry.path();
  }
}

TEST_F(RescueShardsTest, VersionsAreNotMixed) {
  EXPECT_THAT(Save(ShardsOf(Entry(2).held(), 0)), HasSubstr("2 of 3 shards"));
  EXPECT_THAT(Save(ShardsOf(Entry(3).held(), 1)), HasSubstr("2 of 3 shards"));
  EXPECT_THAT(Save(ShardsOf(Entry(3, 1).held(), 2)), HasSubstr("2 of 3 shards"));
  EXPECT_FALSE(fs::exists(file_));
  const auto rescue = Adopt();
  EXPECT_FALSE(rescue.used);
  EXPECT_THAT(rescue.line,
              HasSubstr("workers have saved shards of the optimizer's state there, and "
                        "not all of them"));
  EXPECT_TRUE(Adopt().line.empty()) << "they are gone";
}

// Else zeros would be taken for the shards that the list names.
TEST_F(RescueShardsTest, AListWithoutItsFileCountsForNothing) {
  ASSERT_THAT(Save(ShardsOf(Entry(3).held(), 0)), HasSubstr("2 of 3 shards"));
  fs::remove(run_ / "rescue-shards-1-3-0.partial");
  EXPECT_THAT(Save(ShardsOf(Entry(3).held(), 1)), HasSubstr("2 of 3 shards"));
  EXPECT_FALSE(fs::exists(file_));
}

TEST_F(RescueShardsTest, NothingIsRemovedWhileAWorkerAddsShards) {
  ASSERT_THAT(Save(ShardsOf(Entry(3).held(), 0)), HasSubstr("2 of 3 shards"));
  {
    const coordinator::OwnedFd lock(::open((run_ / "rescue.lock").c_str(), O_RDWR | O_CLOEXEC));
    ASSERT_EQ(::flock(lock.get(), LOCK_EX | LOCK_NB), 0);
    EXPECT_TRUE(Adopt().line.empty());
    EXPECT_TRUE(fs::exists(run_ / "rescue-shards-1-3-0.partial"));
  }
  EXPECT_FALSE(Adopt().line.empty());
  EXPECT_FALSE(fs::exists(run_ / "rescue-shards-1-3-0.partial"));
}

TEST_F(RescueShardsTest, AListOfAnotherJobCountsForNothing) {
  ASSERT_THAT(Save(ShardsOf(Entry(3).held(), 0)), HasSubstr("2 of 3 shards"));
  std::ofstream(run_ / "rescue-shards-1-3-0.list") << "another 0 1 2\n";
  EXPECT_THAT(Save(ShardsOf(Entry(3).held(), 1)), HasSubstr("2 of 3 shards"));
}

}  // namespace
}  // namespace lockstep::worker
