// What compression keeps back is saved beside a checkpoint, and comes back to the worker that has
// saved it, or not at all.

#include "worker/runtime/residual_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "coordinator/journal/journal.h"
#include "tests/temp_folder.h"

namespace lockstep::worker {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;

class ResidualFilesTest : public ::testing::Test {
 protected:
  ResidualFilesTest() {
    fs::create_directories(fs::path(place_.run_dir) / "checkpoints");
    auto journal =
        coordinator::JournalFile::Begin(place_.run_dir, {"one", Term(1), {}}, /*sync=*/false);
    EXPECT_TRUE(journal.ok());
  }
  fs::path PathOf(std::uint64_t round, std::uint32_t worker = 2) const {
    return fs::path(place_.run_dir) / "checkpoints" /
           ("round-000000000" + std::to_string(round) + ".residual-" + std::to_string(worker) +
            ".safetensors");
  }
  void Save(ResidualFiles& files, std::uint64_t round) {
    files.Due(RoundId(round));
    files.OnWork(&residual_);
    files.OnEnd(residual_);  // waits for the write
  }
  void ExpectNone(const ResidualFiles::Place& place, std::uint64_t round, ErrorCode code) {
    std::array<float, 3> values = {};
    const Status loaded = LoadResidual(place, RoundId(round), values);
    ASSERT_FALSE(loaded.ok());
    EXPECT_EQ(loaded.error().code, code) << loaded.error().message;
    EXPECT_THAT(loaded.error().message, HasSubstr("residual-"));
  }

  const test::TempFolder folder_;
  const ResidualFiles::Place place_{folder_.path(), "one", WorkerId(2)};
  std::array<float, 3> kept_ = {};
  std::array<float, 3> first_ = {};
  std::array<float, 3> second_ = {};
  Residual residual_{kept_.data(), {first_.data(), second_.data()}, kept_.size()};
};

TEST_F(ResidualFilesTest, ComesBackToTheWorkerThatHasSavedIt) {
  residual_.Restore(std::array{1.0f, 0.0f, -2.5f});
  {
    ResidualFiles files(place_);
    Save(files, 7);
  }
  residual_.Restore(std::array{0.0f, 0.0f, 0.0f});
  ResidualFiles next(place_);
  next.StartedFrom(RoundId(7));
  next.OnWork(&residual_);
  EXPECT_THAT(residual_.kept(), ElementsAre(1.0f, 0.0f, -2.5f));
}

TEST_F(ResidualFilesTest, AnotherOnesIsNotTaken) {
  const std::array values = {1.0f, 2.0f, 3.0f};
  ASSERT_TRUE(SaveResidual(place_, RoundId(7), values).ok());
  ExpectNone(place_, 8, ErrorCode::kNotFound);
  ExpectNone({place_.run_dir, "one", WorkerId(1)}, 7, ErrorCode::kNotFound);
  ExpectNone({place_.run_dir, "another", WorkerId(2)}, 7, ErrorCode::kInvalid);
  fs::copy(PathOf(7), PathOf(8));
  ExpectNone(place_, 8, ErrorCode::kInvalid);
  fs::copy(PathOf(7), PathOf(7, 1));
  ExpectNone({place_.run_dir, "one", WorkerId(1)}, 7, ErrorCode::kInvalid);
  const std::array more = {1.0f, 2.0f, 3.0f, 4.0f};
  ASSERT_TRUE(SaveResidual(place_, RoundId(7), more).ok());
  ExpectNone(place_, 7, ErrorCode::kInvalid);
}

TEST_F(ResidualFilesTest, NoByteOfItMayChangeAndNoneMayLack) {
  const std::array values = {1.0f, 2.0f, 3.0f};
  ASSERT_TRUE(SaveResidual(place_, RoundId(7), values).ok());
  const std::uintmax_t size = fs::file_size(PathOf(7));
  for (std::uintmax_t at = 0; at < size; ++at) {
    const auto flip = [&] {
      std::fstream file(PathOf(7), std::ios::binary | std::ios::in | std::ios::out);
      file.seekg(static_cast<std::streamoff>(at));
      const int byte = file.get();
      file.seekp(static_cast<std::streamoff>(at));
      file.put(static_cast<char>(byte ^ 4));
    };
    flip();
    ExpectNone(place_, 7, ErrorCode::kInvalid);
    flip();
  }
  std::array<float, 3> read = {};
  EXPECT_TRUE(LoadResidual(place_, RoundId(7), read).ok());
  EXPECT_EQ(read, values);
  fs::resize_file(PathOf(7), size - 1);
  ExpectNone(place_, 7, ErrorCode::kInvalid);
}

TEST_F(ResidualFilesTest, NothingIsWrittenIntoAnotherJobsDirectory) {
  ResidualFiles files({place_.run_dir, "another", WorkerId(2)});
  Save(files, 7);
  EXPECT_FALSE(fs::exists(PathOf(7)));
}

TEST_F(ResidualFilesTest, ThoseWithoutTheirCheckpointGo) {
  ResidualFiles files(place_);
  Save(files, 3);
  Save(files, 5);
  EXPECT_FALSE(fs::exists(PathOf(3)));
  std::ofstream(fs::path(place_.run_dir) / "checkpoints" / "round-0000000005.json") << "{}";
  Save(files, 7);
  EXPECT_TRUE(fs::exists(PathOf(5)));
  EXPECT_TRUE(fs::exists(PathOf(7)));
}

TEST_F(ResidualFilesTest, AfterAnotherCoordinatorTheOldOrderIsVoid) {
  ResidualFiles files(place_);
  files.Due(RoundId(7));
  files.MoveTo(place_);
  files.OnWork(&residual_);
  files.OnEnd(residual_);
  EXPECT_FALSE(fs::exists(PathOf(7)));
}

}  // namespace
}  // namespace lockstep::worker
