// The records of a run directory: whole lines without gaps, whatever the disk does.
#include "coordinator/record/run_directory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <csignal>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "coordinator/record/write_json.h"
#include "tests/temp_folder.h"

namespace {
// What the calls below say; 0: what the kernel does.
int g_lock_error = 0;
int g_folder_sync_error = 0;
}  // namespace

// In the place of the C library's.
extern "C" int flock(int fd, int operation) noexcept {
  if (g_lock_error == 0) return static_cast<int>(::syscall(SYS_flock, fd, operation));
  errno = g_lock_error;
  return -1;
}

extern "C" int fsync(int fd) {
  struct stat status {};
  if (g_folder_sync_error == 0 || ::fstat(fd, &status) != 0 || !S_ISDIR(status.st_mode)) {
    return static_cast<int>(::syscall(SYS_fsync, fd));
  }
  errno = g_folder_sync_error;
  return -1;
}

namespace lockstep::coordinator {
namespace {

using ::testing::HasSubstr;

RoundRecord Record(std::uint64_t round) {
  RoundRecord record;
  record.round = RoundId(round);
  record.samples = 10;
  record.loss = 0.5;
  record.commit = static_cast<double>(round);
  return record;
}

std::string TextOf(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

TEST(RunDirectory, AFullDiskLeavesWholeLinesAndNoGap) {
  const test::TempFolder folder;
  auto directory = std::move(*RunDirectory::Open(folder / "run", false));
  const auto path = folder / "run/rounds.jsonl";
  for (std::uint64_t round = 0; round < 3; ++round) {
    ASSERT_TRUE(directory->AppendRound(RoundLine(Record(round))).ok());
  }
  const std::string good = TextOf(path);
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  auto* handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit full{good.size() + 10, before.rlim_max};
  setrlimit(RLIMIT_FSIZE, &full);
  const Status failed = directory->AppendRound(RoundLine(Record(3)));
  setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  ASSERT_FALSE(failed.ok());
  EXPECT_THAT(failed.error().message, HasSubstr("rounds.jsonl"));
  EXPECT_EQ(TextOf(path), good);
  // Round 3 has no line, so round 4 gets none, and no checkpoint may count that knows of them.
  EXPECT_FALSE(directory->AppendRound(RoundLine(Record(4))).ok());
  EXPECT_FALSE(directory->Sync()().ok());
  EXPECT_EQ(TextOf(path), good);
}

// A job that somebody has forgotten, and a new one in the same place.
TEST(RunDirectory, NothingIsWrittenToAnotherJobsFolder) {
  const test::TempFolder folder;
  auto directory = std::move(*RunDirectory::Open(folder / "run", false));
  ASSERT_TRUE(directory->AppendRound(RoundLine(Record(0))).ok());
  EXPECT_TRUE(directory->Held().ok());
  std::filesystem::remove_all(folder / "run");
  EXPECT_FALSE(directory->Held().ok());
  auto other = std::move(*RunDirectory::Open(folder / "run", false));
  ASSERT_TRUE(other->AppendRound(RoundLine(Record(0))).ok());
  const std::string theirs = TextOf(folder / "run/rounds.jsonl");
  const Status append = directory->AppendRound(RoundLine(Record(1)));
  ASSERT_FALSE(append.ok());
  EXPECT_THAT(append.error().message, HasSubstr("rounds.jsonl: was replaced by another"));
  EXPECT_FALSE(directory->AppendEvaluation(EvaluationLine(EvaluationRecord())).ok());
  EXPECT_FALSE(directory->AppendTimeline(Record(1)).ok());
  EXPECT_FALSE(directory->Sync()().ok());
  EXPECT_FALSE(directory->WriteLast("summary.json", "{}\n").ok());
  EXPECT_EQ(TextOf(folder / "run/rounds.jsonl"), theirs);
  EXPECT_FALSE(std::filesystem::exists(folder / "run/evaluations.jsonl"));
  EXPECT_FALSE(std::filesystem::exists(folder / "run/timeline.json"));
  EXPECT_FALSE(std::filesystem::exists(folder / "run/summary.json"));
  EXPECT_TRUE(other->Held().ok());
}

// A checkpoint could not be resumed without them.
TEST(RunDirectory, RecordsThatWereRemovedAreMissed) {
  const test::TempFolder folder;
  auto directory = std::move(*RunDirectory::Open(folder / "run", false));
  ASSERT_TRUE(directory->AppendRound(RoundLine(Record(0))).ok());
  const auto sync = directory->Sync();
  std::filesystem::remove(folder / "run/rounds.jsonl");
  const Status synced = sync();
  ASSERT_FALSE(synced.ok());
  EXPECT_THAT(synced.error().message, HasSubstr("rounds.jsonl: was removed"));
  EXPECT_FALSE(directory->AppendRound(RoundLine(Record(1))).ok());
  EXPECT_FALSE(std::filesystem::exists(folder / "run/rounds.jsonl"));
}

TEST(RunDirectory, KeepsWhatACheckpointKnowsOf) {
  const test::TempFolder folder;
  auto directory = std::move(*RunDirectory::Open(folder / "run", false));
  for (std::uint64_t round = 0; round < 5; ++round) {
    ASSERT_TRUE(directory->AppendRound(RoundLine(Record(round))).ok());
    EvaluationRecord evaluation;
    evaluation.round = RoundId(round);
    evaluation.accuracy = 0.25 * static_cast<double>(round);
    ASSERT_TRUE(directory->AppendEvaluation(EvaluationLine(evaluation)).ok());
  }
  const std::string all = TextOf(folder / "run/rounds.jsonl");
  EXPECT_FALSE(directory->Keep(RoundId(6), 60, 0).ok());
  EXPECT_FALSE(directory->Keep(RoundId(3), 31, 0).ok());
  const auto kept = directory->Keep(RoundId(3), 30, 0);
  ASSERT_TRUE(kept.ok()) << kept.error().message;
  EXPECT_EQ(kept->latest, 2.0);
  EXPECT_EQ(kept->train_loss, 0.5);
  ASSERT_TRUE(kept->evaluated.has_value());
  EXPECT_EQ(kept->evaluated->round, RoundId(2));
  EXPECT_EQ(kept->evaluated->accuracy, 0.5);
  EXPECT_EQ(TextOf(folder / "run/rounds.jsonl"), all);
  ASSERT_TRUE(directory->CutBack(*kept).ok());
  const std::string cut = TextOf(folder / "run/rounds.jsonl");
  EXPECT_EQ(std::count(cut.begin(), cut.end(), '\n'), 3);
  EXPECT_EQ(all.substr(0, cut.size()), cut);
  const std::string evaluations = TextOf(folder / "run/evaluations.jsonl");
  EXPECT_EQ(std::count(evaluations.begin(), evaluations.end(), '\n'), 3);
}

// A job that had no further round, and gets one: what it dropped for that comes again, and what it
// skipped does not.
TEST(RunDirectory, WhatTheLastRoundHasDroppedComesAgain) {
  const test::TempFolder folder;
  auto directory = std::move(*RunDirectory::Open(folder / "run", false));
  RoundRecord last = Record(2);
  last.update = 3;
  last.loss = std::nan("");
  last.skipped = {{WorkerId(1), {{30, 34}}}, {WorkerId(3), {{44, 46}}}};
  last.dropped = {{20, 25}, {30, 34}, {40, 41}, {44, 46}};
  std::string expected;
  for (std::uint64_t round = 0; round < 2; ++round) {
    ASSERT_TRUE(directory->AppendRound(RoundLine(Record(round))).ok());
    expected += RoundLine(Record(round)) + '\n';
  }
  ASSERT_TRUE(directory->AppendRound(RoundLine(last)).ok());
  EXPECT_FALSE(directory->Keep(RoundId(3), 30, 0).ok());
  EXPECT_FALSE(directory->Keep(RoundId(3), 30, 12).ok());
  last.requeued = {{20, 25}, {40, 41}};
  last.dropped = {{30, 34}, {44, 46}};
  expected += RoundLine(last) + '\n';
  // Also when nothing has come of that.
  for (int times = 0; times < 2; ++times) {
    const auto kept = directory->Keep(RoundId(3), 30, 6);
    ASSERT_TRUE(kept.ok()) << kept.error().message;
    EXPECT_EQ(kept->requeued, 6u);
    ASSERT_TRUE(directory->CutBack(*kept).ok());
    EXPECT_EQ(TextOf(folder / "run/rounds.jsonl"), expected);
  }
  ASSERT_TRUE(directory->AppendRound(RoundLine(Record(3))).ok());
  EXPECT_EQ(TextOf(folder / "run/rounds.jsonl"), expected + RoundLine(Record(3)) + '\n');
}

TEST(RunDirectory, AFileSystemThatCannotLockIsNoOtherCoordinator) {
  const test::TempFolder folder;
  const auto held = std::move(*RunDirectory::Open(folder / "run", false));
  const auto taken = RunDirectory::Open(folder / "run", false);
  ASSERT_FALSE(taken.ok());
  EXPECT_THAT(taken.error().message, HasSubstr("another coordinator is writing"));
  g_lock_error = ENOLCK;
  const auto none = RunDirectory::Open(folder / "other", false);
  g_lock_error = 0;
  ASSERT_FALSE(none.ok());
  EXPECT_EQ(none.error().code, ErrorCode::kInvalid);
  EXPECT_THAT(none.error().message, HasSubstr("other/lock: cannot be locked: No locks available"));
}

TEST(RunDirectory, AFileSystemThatCannotSyncFoldersWillDo) {
  const test::TempFolder folder;
  const auto directory = std::move(*RunDirectory::Open(folder / "run", false));
  g_folder_sync_error = EINVAL;
  const Status written = directory->WriteFile("term", "1\n");
  g_folder_sync_error = EIO;
  const Status failed = directory->WriteFile("term", "2\n");
  g_folder_sync_error = 0;
  EXPECT_TRUE(written.ok()) << written.error().message;
  ASSERT_FALSE(failed.ok());
  EXPECT_THAT(failed.error().message, HasSubstr("run: cannot sync"));
}

// A stop of the machine must not take the name of records that a checkpoint counts on.
TEST(RunDirectory, TheNamesOfTheRecordsAreBroughtToTheDiskOnce) {
  const test::TempFolder folder;
  const auto directory = std::move(*RunDirectory::Open(folder / "run", false));
  ASSERT_TRUE(directory->AppendRound(RoundLine(Record(0))).ok());
  g_folder_sync_error = EIO;
  const Status failed = directory->Sync()();
  g_folder_sync_error = 0;
  const Status synced = directory->Sync()();
  g_folder_sync_error = EIO;
  const Status again = directory->Sync()();
  g_folder_sync_error = 0;
  ASSERT_FALSE(failed.ok());
  EXPECT_THAT(failed.error().message, HasSubstr("run: cannot sync"));
  EXPECT_TRUE(synced.ok());
  EXPECT_TRUE(again.ok());
}

// Strangers may have taken all descriptors that there are.
TEST(RunDirectory, AppendingAndSyncingTakeNoMoreFiles) {
  const test::TempFolder folder;
  const auto directory = std::move(*RunDirectory::Open(folder / "run", false));
  ASSERT_TRUE(directory->AppendRound(RoundLine(Record(0))).ok());
  ASSERT_TRUE(directory->Sync()().ok());
  rlimit before{};
  getrlimit(RLIMIT_NOFILE, &before);
  const rlimit none{0, before.rlim_max};
  setrlimit(RLIMIT_NOFILE, &none);
  const Status appended = directory->AppendRound(RoundLine(Record(1)));
  const Status synced = directory->Sync()();
  setrlimit(RLIMIT_NOFILE, &before);
  EXPECT_TRUE(appended.ok());
  EXPECT_TRUE(synced.ok()) << synced.error().message;
}

#ifndef LOCKSTEP_SANITIZED  // which keeps what was freed for a while
long MostMemoryBytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss * 1024;
}

// Those of a long job of many workers are gigabytes.
TEST(RunDirectory, RecordsAreNotHeldAsAWhole) {
  const test::TempFolder folder;
  auto directory = std::move(*RunDirectory::Open(folder / "run", false));
  RoundRecord record = Record(0);
  record.reason = std::string(64 << 10, 'x');
  constexpr std::uint64_t kRecords = 256;
  for (; record.round.value < kRecords; ++record.round.value) {
    ASSERT_TRUE(directory->AppendRound(RoundLine(record)).ok());
  }
  const auto bytes = static_cast<long>(std::filesystem::file_size(folder / "run/rounds.jsonl"));
  const long before = MostMemoryBytes();
  const auto kept = directory->Keep(RoundId(kRecords), kRecords * 10, 0);
  ASSERT_TRUE(kept.ok()) << kept.error().message;
  ASSERT_TRUE(directory->CutBack(*kept).ok());
  EXPECT_LT(MostMemoryBytes() - before, bytes / 4);
}
#endif

// Else a job that was resumed and killed would look as if it had ended.
TEST(RunDirectory, AJobThatGoesOnHasNoSummary) {
  const test::TempFolder folder;
  auto directory = std::move(*RunDirectory::Open(folder / "run", false));
  ASSERT_TRUE(directory->AppendRound(RoundLine(Record(0))).ok());
  ASSERT_TRUE(directory->WriteLast("summary.json", "{}\n").ok());
  const auto kept = directory->Keep(RoundId(1), 10, 0);
  ASSERT_TRUE(kept.ok()) << kept.error().message;
  EXPECT_TRUE(std::filesystem::exists(folder / "run/summary.json"));
  ASSERT_TRUE(directory->CutBack(*kept).ok());
  EXPECT_FALSE(std::filesystem::exists(folder / "run/summary.json"));
}

// Which line, and what is wrong with it: somebody has to decide what becomes of the job.
TEST(RunDirectory, ALineThatCannotBeReadIsNamed) {
  const test::TempFolder folder;
  auto directory = std::move(*RunDirectory::Open(folder / "run", false));
  RoundRecord odd = Record(1);
  odd.start = -2e9;
  ASSERT_TRUE(directory->AppendRound(RoundLine(Record(0))).ok());
  ASSERT_TRUE(directory->AppendRound(RoundLine(odd)).ok());
  const auto kept = directory->Keep(RoundId(2), 20, 0);
  ASSERT_FALSE(kept.ok());
  EXPECT_THAT(kept.error().message,
              HasSubstr("rounds.jsonl: line 2: not a record of a round: a time is -2000000000.0, "
                        "expected -1"));
}

// A FIFO would have the coordinator wait for a writer for ever.
TEST(RunDirectory, RecordsThatAreNoFileAreNotWaitedFor) {
  const test::TempFolder folder;
  auto directory = std::move(*RunDirectory::Open(folder / "run", false));
  ASSERT_EQ(::mkfifo((folder / "run/rounds.jsonl").c_str(), 0600), 0);
  const auto kept = directory->Keep(RoundId(1), 10, 0);
  ASSERT_FALSE(kept.ok());
  EXPECT_THAT(kept.error().message, HasSubstr("rounds.jsonl: is not a regular file"));
}

std::vector<std::uint64_t> RoundsOfTimeline(const std::filesystem::path& path) {
  std::vector<std::uint64_t> rounds;
  const auto timeline = nlohmann::json::parse(TextOf(path));
  for (const auto& event : timeline["traceEvents"]) {
    const std::string name = event["name"];
    if (event["ph"] == "X" && name.rfind("round ", 0) == 0)
      rounds.push_back(std::stoul(name.substr(6)));
  }
  return rounds;
}

TEST(RunDirectory, TheTimelineIsWholeAfterEachRound) {
  const test::TempFolder folder;
  auto directory = std::move(*RunDirectory::Open(folder / "run", false));
  const auto path = folder / "run/timeline.json";
  std::vector<std::uint64_t> expected;
  for (std::uint64_t round = 0; round < 5; ++round) {
    ASSERT_TRUE(directory->AppendRound(RoundLine(Record(round))).ok());
    ASSERT_TRUE(directory->AppendTimeline(Record(round)).ok());
    expected.push_back(round);
    EXPECT_EQ(RoundsOfTimeline(path), expected);
  }
  const auto kept = directory->Keep(RoundId(3), 30, 0);
  ASSERT_TRUE(kept.ok()) << kept.error().message;
  ASSERT_TRUE(directory->CutBack(*kept).ok());
  EXPECT_EQ(RoundsOfTimeline(path), (std::vector<std::uint64_t>{0, 1, 2}));
  ASSERT_TRUE(directory->AppendTimeline(Record(3)).ok());
  EXPECT_EQ(RoundsOfTimeline(path), (std::vector<std::uint64_t>{0, 1, 2, 3}));
}

TEST(RunDirectory, ATimelineThatCannotGrowStaysWhole) {
  const test::TempFolder folder;
  auto directory = std::move(*RunDirectory::Open(folder / "run", false));
  const auto path = folder / "run/timeline.json";
  ASSERT_TRUE(directory->AppendTimeline(Record(0)).ok());
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  auto* handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit full{std::filesystem::file_size(path) + 10, before.rlim_max};
  setrlimit(RLIMIT_FSIZE, &full);
  const Status second = directory->AppendTimeline(Record(1));
  setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  ASSERT_FALSE(second.ok());
  EXPECT_THAT(second.error().message, HasSubstr("timeline.json: cannot write"));
  EXPECT_EQ(RoundsOfTimeline(path), std::vector<std::uint64_t>{0});
  EXPECT_FALSE(directory->AppendTimeline(Record(2)).ok());
}

// The newest checkpoints stay, which would be those of the job before.
TEST(RunDirectory, WhatAnEarlierJobHasLeftIsNoBeginning) {
  for (const char* left :
       {"rounds.jsonl", "evaluations.jsonl", "checkpoints/round-0000000009.json"}) {
    const test::TempFolder folder;
    std::filesystem::create_directories(folder / "run/checkpoints");
    std::ofstream(folder / (std::string("run/") + left)) << "{}\n";
    const auto opened = RunDirectory::Open(folder / "run", false);
    ASSERT_FALSE(opened.ok()) << left;
    EXPECT_EQ(opened.error().code, ErrorCode::kRefused);
    EXPECT_THAT(opened.error().message, HasSubstr("of an earlier job"));
  }
  // One that has failed before its first round leaves nothing that could be mixed up.
  const test::TempFolder folder;
  std::filesystem::create_directories(folder / "run/checkpoints");
  std::ofstream(folder / "run/summary.json") << "{}\n";
  // Nor does a copy that somebody has kept.
  std::ofstream(folder / "run/checkpoints/round-0000000009-best.json") << "{}\n";
  EXPECT_TRUE(RunDirectory::Open(folder / "run", false).ok());
  EXPECT_FALSE(std::filesystem::exists(folder / "run/summary.json"));
}

TEST(RunDirectory, WhatCannotBeUsedIsAnErrorOfTheUser) {
  const test::TempFolder folder;
  std::ofstream(folder / "file") << "x";
  const auto in_a_file = RunDirectory::Open(folder / "file/run", false);
  ASSERT_FALSE(in_a_file.ok());
  EXPECT_EQ(in_a_file.error().code, ErrorCode::kInvalid);
  const auto nothing = RunDirectory::Open(folder / "typo", true);
  ASSERT_FALSE(nothing.ok());
  EXPECT_EQ(nothing.error().code, ErrorCode::kNotFound);
  EXPECT_FALSE(std::filesystem::exists(folder / "typo"));
}

}  // namespace
}  // namespace lockstep::coordinator
