// Checkpoints on the disk: what is written comes back by name, and what is damaged does not.
#include "coordinator/checkpoint/checkpoint_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <algorithm>
#include <csignal>
#include <fstream>
#include <limits>

#include "coordinator/checkpoint/checkpoint_reader.h"
#include "coordinator/core/resume_rules.h"
#include "tests/temp_folder.h"

namespace lockstep::coordinator {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class CheckpointStoreTest : public ::testing::Test {
 protected:
  CheckpointStoreTest() : store_(folder_.path(), 1) {
    ready_.parameter_count = 6;
    ready_.state_tensors = 1;
    ready_.tensors = {{"weight", {2, 2}}, {"bias", {2}}};
    ready_.state_names = {"momentum"};
    store_.Describe(ready_);
  }

  // The checkpoint after this round: values from `first` on.
  Status Write(std::uint64_t round, float first, bool whole = true) {
    JobState state;
    state.next_round = RoundId(round + 1);
    state.updates = state.totals.rounds = round + 1;
    state.sampler = {100, Epoch(0), {{round + 1, 100}}};
    state.totals.samples_counted = round + 1;
    state.parameter_count = ready_.parameter_count;
    state.state_tensors = ready_.state_tensors;
    state.tensors = ready_.tensors;
    state.state_names = ready_.state_names;
    state.settings = SettingsToRemember(JobConfig());
    DigestStream digest;
    for (std::uint32_t t = 0; t < 2; ++t) {
      std::vector<float> values(6);
      for (float& value : values) value = first++;
      const auto bytes = std::as_bytes(std::span(values));
      digest.Update(bytes);
      // In pieces that do not end where tensors do.
      store_.Add({RoundId(round), t, 0, false, {bytes.begin(), bytes.begin() + 12}});
      if (whole) store_.Add({RoundId(round), t, 12, t == 1, {bytes.begin() + 12, bytes.end()}});
    }
    state.digest = digest.Digest();
    return store_.Save(RoundId(round), state)();
  }
  std::vector<std::string> Names() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(folder_.path())) {
      names.push_back(entry.path().filename().string());
    }
    std::sort(names.begin(), names.end());
    return names;
  }

  const test::TempFolder folder_;
  msg::Ready ready_;
  CheckpointStore store_;
};

TEST_F(CheckpointStoreTest, GivesBackWhatWasWrittenInChunks) {
  ASSERT_TRUE(Write(4, 1).ok());
  const auto loaded = store_.Newest();
  ASSERT_TRUE(loaded.ok()) << loaded.error().message;
  ASSERT_TRUE(loaded->has_value());
  auto reader = CheckpointReader::Open((*loaded)->tensors, (*loaded)->state);
  ASSERT_TRUE(reader.ok());
  std::vector<float> values;
  std::vector<std::pair<std::uint32_t, std::uint64_t>> places;
  while (reader->read() < reader->total()) {
    const auto chunk = reader->Next(12);
    ASSERT_TRUE(chunk.ok());
    ASSERT_LE(chunk->bytes.size(), 12u);
    EXPECT_EQ(chunk->last, reader->read() == reader->total());
    places.emplace_back(chunk->tensor, chunk->offset);
    const auto* floats = reinterpret_cast<const float*>(chunk->bytes.data());
    values.insert(values.end(), floats, floats + chunk->bytes.size() / sizeof(float));
  }
  EXPECT_THAT(values, ElementsAre(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12));
  EXPECT_EQ(places.front(), std::pair(0u, std::uint64_t{0}));
  EXPECT_EQ(places.back(), std::pair(1u, std::uint64_t{16}));
}

TEST_F(CheckpointStoreTest, NoNumberIsRefusedByName) {
  ASSERT_TRUE(Write(4, std::numeric_limits<float>::infinity()).ok());
  const auto loaded = store_.Newest();
  ASSERT_FALSE(loaded.ok());
  EXPECT_THAT(loaded.error().message, HasSubstr("tensor 'weight'"));
}

TEST_F(CheckpointStoreTest, AFileUnderAnothersNameIsRefused) {
  ASSERT_TRUE(Write(4, 1).ok());
  for (const char* extension : {".json", ".safetensors"}) {
    std::filesystem::rename(folder_ / (std::string("round-0000000004") + extension),
                            folder_ / (std::string("round-0000000009") + extension));
  }
  const auto loaded = store_.Newest();
  ASSERT_FALSE(loaded.ok());
  EXPECT_THAT(loaded.error().message, HasSubstr("the state after round 4"));
}

// Somebody's copies, one that sorts before the checkpoints and one behind them.
TEST_F(CheckpointStoreTest, FilesOfOtherNamesAreLeftAlone) {
  ASSERT_TRUE(Write(4, 1).ok());
  for (const char* stem : {"best", "saved", "round-4", "round-0000000009 copy"}) {
    for (const char* extension : {".json", ".safetensors"}) {
      std::filesystem::copy_file(folder_ / (std::string("round-0000000004") + extension),
                                 folder_ / (std::string(stem) + extension));
    }
  }
  const auto loaded = store_.Newest();
  ASSERT_TRUE(loaded.ok()) << loaded.error().message;
  EXPECT_EQ((*loaded)->round, RoundId(4));
  ASSERT_TRUE(Write(5, 1).ok());
  EXPECT_THAT(Names(), ElementsAre("best.json", "best.safetensors", "round-0000000005.json",
                                   "round-0000000005.safetensors", "round-0000000009 copy.json",
                                   "round-0000000009 copy.safetensors", "round-4.json",
                                   "round-4.safetensors", "saved.json", "saved.safetensors"));
}

TEST_F(CheckpointStoreTest, AStateThatIsNoFileIsNotWaitedFor) {
  ASSERT_EQ(::mkfifo((folder_ / "round-0000000004.json").c_str(), 0600), 0);
  const auto loaded = store_.Newest();
  ASSERT_FALSE(loaded.ok());
  EXPECT_THAT(loaded.error().message, HasSubstr("is not a regular file"));
}

// Writing beyond `bytes` fails, as on a full disk.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit{bytes, before_.rlim_max};
    setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() {
    setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }

 private:
  rlimit before_{};
  void (*handler_)(int);
};

TEST_F(CheckpointStoreTest, WhereverADiskIsFullTheLastGoodOneStays) {
  ASSERT_TRUE(Write(4, 1).ok());
  const auto good = Names();
  // At the tensors' first byte, among them, in the state file at its first byte and later.
  for (const rlim_t bytes : {0, 100, 350, 400, 800}) {
    Status status;
    {
      const FileSizeLimit limit(bytes);
      status = Write(9, 100);
    }
    ASSERT_FALSE(status.ok()) << bytes;
    EXPECT_EQ(status.error().code, ErrorCode::kIo);
    EXPECT_EQ(Names(), good) << bytes;
    const auto loaded = store_.Newest();
    ASSERT_TRUE(loaded.ok() && *loaded) << bytes;
    EXPECT_EQ((*loaded)->round, RoundId(4));
  }
  ASSERT_TRUE(Write(9, 100).ok());
  EXPECT_THAT(Names(), ElementsAre("round-0000000009.json", "round-0000000009.safetensors"));
}

}  // namespace
}  // namespace lockstep::coordinator
