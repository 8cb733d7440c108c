// What a coordinator notes of its commits comes back as it was, whatever the stop that ended it;
// and what was changed or damaged is refused with its line.

#include "coordinator/journal/journal.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "tests/temp_folder.h"

namespace lockstep::coordinator {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// The state after so many rounds of 10 samples, in an epoch of 100.
JournalEntry Entry(std::uint64_t next, std::optional<std::uint32_t> attempt = 0,
                   std::uint32_t term = 1) {
  JournalEntry entry;
  entry.term = Term(term);
  if (attempt) entry.attempt = Attempt(*attempt);
  JobState& state = entry.state;
  state.next_round = RoundId(next);
  state.updates = next;
  state.sampler = {100, Epoch(0), {{10 * next, 100}}};
  state.totals.rounds = next;
  state.totals.samples_counted = 10 * next;
  state.dataset_digest = "abc";
  state.parameter_count = 6;
  state.state_tensors = 1;
  state.tensors = {{"w", {2, 3}}};
  state.state_names = {"momentum"};
  state.settings = {{"policy.name", "full"}};
  if (attempt) {
    auto record = std::make_shared<RoundRecord>();
    record->round = RoundId(next - 1);
    record->policy = "full";
    record->samples = 10;
    record->contributors = {{.worker = WorkerId(0),
                             .part = PartIndex(0),
                             .weight = 1,
                             .samples = 10,
                             .ranges = {{10 * next - 10, 10 * next}}}};
    entry.record = record;
  }
  entry.policy = "flexrr";
  entry.slowdowns = "worker=1,factor=2\n";
  entry.members = {WorkerId(0), WorkerId(1), WorkerId(5)};
  entry.audit = {40, 2, {WorkerId(1)}};
  entry.wrong_devices = {{"node-1", "boot-id", "cuda:0"}};
  return entry;
}

class JournalTest : public testing::Test {
 protected:
  std::unique_ptr<JournalFile> Begin(JournalFile::Contents contents = {"run", Term(1), {}}) {
    auto journal = JournalFile::Begin(folder_.path(), contents, false);
    EXPECT_TRUE(journal.ok()) << journal.error().message;
    return *std::move(journal);
  }
  std::string Text() const {
    std::ifstream in(folder_ / JournalFile::kName);
    std::ostringstream text;
    text << in.rdbuf();
    return text.str();
  }
  static std::vector<std::uint64_t> Rounds(const JournalFile::Contents& contents) {
    std::vector<std::uint64_t> rounds;
    for (const JournalEntry& entry : contents.entries) {
      rounds.push_back(entry.state.next_round.value);
    }
    return rounds;
  }

  test::TempFolder folder_;
};

TEST_F(JournalTest, ComesBackAsItWas) {
  auto journal = Begin({"run", Term(3), {}});
  ASSERT_TRUE(journal->Append(Entry(1, 2, 3)));
  const auto read = JournalFile::Read(folder_.path());
  ASSERT_TRUE(read.ok()) << read.error().message;
  EXPECT_EQ(read->run_id, "run");
  EXPECT_EQ(read->term, Term(3));
  ASSERT_EQ(read->entries.size(), 1u);
  const JournalEntry& entry = read->entries.front();
  const JournalEntry wanted = Entry(1, 2, 3);
  EXPECT_EQ(entry.held(), wanted.held());
  EXPECT_EQ(entry.state.sampler, wanted.state.sampler);
  EXPECT_EQ(entry.state.totals.samples_counted, 10u);
  EXPECT_EQ(entry.state.tensors, wanted.state.tensors);
  EXPECT_EQ(entry.state.settings, wanted.state.settings);
  EXPECT_EQ(entry.record->contributors.front().ranges, (std::vector<SampleRange>{{0, 10}}));
  EXPECT_EQ(entry.policy, "flexrr");
  EXPECT_EQ(entry.slowdowns, "worker=1,factor=2\n");
  EXPECT_EQ(entry.members, wanted.members);
  EXPECT_EQ(entry.audit, wanted.audit);
  EXPECT_EQ(entry.wrong_devices, wanted.wrong_devices);
}

TEST_F(JournalTest, AnotherAttemptTakesThePlaceOfTheOneBefore) {
  auto journal = Begin();
  for (const JournalEntry& entry : {Entry(1), Entry(2, 0), Entry(2, 1)}) {
    ASSERT_TRUE(journal->Append(entry));
  }
  const auto read = JournalFile::Read(folder_.path());
  ASSERT_THAT(Rounds(*read), ElementsAre(1, 2));
  EXPECT_EQ(read->entries.back().attempt, Attempt(1));
}

// The coordinator of term 2 has found nobody who holds round 2: whoever turns up with it later
// holds what nobody else has.
TEST_F(JournalTest, WhatTheJobDidNotGoOnFromIsVoid) {
  auto journal = Begin();
  for (const JournalEntry& entry : {Entry(1), Entry(2), Entry(1, std::nullopt, 2)}) {
    ASSERT_TRUE(journal->Append(entry));
  }
  const auto read = JournalFile::Read(folder_.path());
  ASSERT_THAT(Rounds(*read), ElementsAre(1, 1));
  EXPECT_EQ(read->entries.front().held(), (HeldParameters{Term(1), RoundId(1), Attempt(0)}));
  EXPECT_EQ(read->entries.back().held(), (HeldParameters{Term(2), RoundId(1), std::nullopt}));
}

// Workers that have not heard of term 2 yet hold what the entry of term 1 tells of.
TEST_F(JournalTest, WhatIsNotedAtTheBeginningOfATermLeavesTheEntryBeforeIt) {
  auto journal = Begin();
  JournalEntry more = Entry(2, std::nullopt, 2);
  more.slowdowns = "";
  for (const JournalEntry& entry : {Entry(1), Entry(2), Entry(2, std::nullopt, 2), more}) {
    ASSERT_TRUE(journal->Append(entry));
  }
  const auto read = JournalFile::Read(folder_.path());
  ASSERT_THAT(Rounds(*read), ElementsAre(1, 2, 2));
  EXPECT_EQ(read->entries[1].held(), (HeldParameters{Term(1), RoundId(2), Attempt(0)}));
  EXPECT_EQ(read->entries[2].held(), (HeldParameters{Term(2), RoundId(2), std::nullopt}));
  EXPECT_EQ(read->entries[2].slowdowns, "");
}

// Cut anywhere in its last line it is the journal without that line.
TEST_F(JournalTest, ALineThatWasNotWrittenToItsEndIsLeftOut) {
  auto journal = Begin();
  ASSERT_TRUE(journal->Append(Entry(1)));
  const std::string before = Text();
  ASSERT_TRUE(journal->Append(Entry(2)));
  const std::string text = Text();
  for (std::size_t length = before.size(); length < text.size(); length += 7) {
    const auto read = JournalFile::Parse(text.substr(0, length));
    ASSERT_TRUE(read.ok()) << length << ": " << read.error().message;
    EXPECT_THAT(Rounds(*read), ElementsAre(1)) << length;
  }
}

TEST_F(JournalTest, DamageInItsMidstIsRefusedWithItsLine) {
  auto journal = Begin();
  for (std::uint64_t next = 1; next < 4; ++next) ASSERT_TRUE(journal->Append(Entry(next)));
  std::string text = Text();
  const std::size_t second = text.find('\n', text.find('\n') + 1) + 50;
  text[second] ^= 1;
  const auto read = JournalFile::Parse(text);
  ASSERT_FALSE(read.ok());
  EXPECT_THAT(read.error().message, HasSubstr("line 3: its checksum does not fit"));
  EXPECT_FALSE(JournalFile::Parse("").ok());
  EXPECT_FALSE(JournalFile::Parse("no journal\n").ok());
}

// However many rounds a job has.
TEST_F(JournalTest, ItStaysShort) {
  auto journal = Begin();
  JournalEntry entry = Entry(1);
  entry.slowdowns = std::string(600000, 'x');
  std::uint64_t most = 0;
  for (std::uint64_t next = 1; next < 10; ++next) {
    for (std::uint32_t attempt = 0; attempt < 10; ++attempt) {
      entry = Entry(next, attempt);
      entry.slowdowns = std::string(600000, 'x');
      ASSERT_TRUE(journal->Append(entry));
      most = std::max(most, std::filesystem::file_size(folder_ / JournalFile::kName));
    }
  }
  EXPECT_LT(most, JournalFile::kMostBytes + 5 * 610000);
  const auto read = JournalFile::Read(folder_.path());
  ASSERT_TRUE(read.ok()) << read.error().message;
  EXPECT_EQ(read->entries.back().held(), entry.held());
  EXPECT_EQ(read->entries.back().state.tensors, entry.state.tensors);
}

// What a standby is sent: the text once, then each line.
TEST_F(JournalTest, AStandbyReadsItLineByLine) {
  auto journal = Begin({"run", Term(2), {}});
  for (std::uint64_t next = 1; next < 3; ++next) ASSERT_TRUE(journal->Append(Entry(next, 0, 2)));
  JournalReader reader(JournalFile::kKept);
  std::istringstream text(journal->Text());
  for (std::string line; std::getline(text, line);) ASSERT_TRUE(reader.Take(line));
  for (std::uint64_t next = 3; next < 10; ++next) {
    ASSERT_TRUE(journal->Append(Entry(next, 0, 2)));
    const std::string& line = journal->last_line();
    const Status taken = reader.Take(std::string_view(line).substr(0, line.size() - 1));
    ASSERT_TRUE(taken.ok()) << taken.error().message;
  }
  EXPECT_EQ(reader.contents().run_id, "run");
  EXPECT_EQ(reader.contents().term, Term(2));
  EXPECT_THAT(Rounds(reader.contents()), ElementsAre(6, 7, 8, 9));
  EXPECT_EQ(reader.contents().entries.back().state.tensors, Entry(9).state.tensors);
}

// The first entry brings what all have in common.
TEST_F(JournalTest, AStandbyMayComeBeforeTheFirstEntry) {
  auto journal = Begin({"run", Term(1), {}});
  JournalReader reader(JournalFile::kKept);
  const std::string first = journal->Text();
  ASSERT_TRUE(reader.Take(first.substr(0, first.size() - 1)));
  ASSERT_TRUE(journal->Append(Entry(1)));
  const std::string line = journal->last_line();
  std::string damaged = line.substr(0, line.size() - 1);
  damaged[40] ^= 1;
  JournalReader other(JournalFile::kKept);
  ASSERT_TRUE(other.Take(first.substr(0, first.size() - 1)));
  EXPECT_THAT(other.Take(damaged).error().message, HasSubstr("its checksum does not fit"));
  EXPECT_FALSE(other.Take(line.substr(0, line.size() / 2)));
  ASSERT_TRUE(reader.Take(line.substr(0, line.size() - 1)));
  EXPECT_EQ(reader.contents().entries.back().state.tensors, Entry(1).state.tensors);
}

}  // namespace
}  // namespace lockstep::coordinator
