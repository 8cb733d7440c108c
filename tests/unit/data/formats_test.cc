// The files of each format: what is read from good ones, what is said of bad ones.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "tests/temp_folder.h"
#include "tests/unit/data/fixtures.h"
#include "worker/data/dataset.h"

namespace lockstep::worker {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

DataSection Files(const std::string& format, const std::string& path) {
  DataSection section;
  section.format = format;
  section.path = path;
  return section;
}

std::string MessageFor(const DataSection& section) {
  const auto dataset = OpenDataset(section, 1);
  if (dataset.ok()) return "opened";
  EXPECT_EQ(dataset.error().message.find('\n'), std::string::npos);
  return dataset.error().message;
}

TEST(Idx, PlainAndGzipAreTheSame) {
  const test::TempFolder plain_folder, gzip_folder;
  test::WriteIdxFolder(plain_folder.path(), false);
  test::WriteIdxFolder(gzip_folder.path(), true);
  const auto plain = OpenDataset(Files("idx", plain_folder.path()), 1);
  const auto gzip = OpenDataset(Files("idx", gzip_folder.path()), 1);
  ASSERT_TRUE(plain.ok()) << plain.error().message;
  ASSERT_TRUE(gzip.ok()) << gzip.error().message;
  EXPECT_EQ((*plain)->digest(), (*gzip)->digest());
  EXPECT_EQ((*plain)->size(Split::kTrain), 6u);
  EXPECT_EQ((*plain)->size(Split::kTest), 4u);
  EXPECT_EQ((*plain)->classes(), 3u);
  EXPECT_EQ((*plain)->shape(), (ImageShape{1, 3, 4}));
  Batch batch;
  (*gzip)->FillBatch(Split::kTest, std::vector<std::uint32_t>{3, 1}, batch);
  EXPECT_EQ(batch.labels[0], 0);
  EXPECT_EQ(batch.labels[1], 1);
  // Pixel p of sample s is 10 s + p: sample 3 is 20 brighter than sample 1.
  const float one = batch.inputs[1] - batch.inputs[0];
  EXPECT_NEAR(batch.inputs[5] - batch.inputs[12 + 5], 20 * one, 1e-4f);
}

TEST(Idx, MissingFilesAreNamed) {
  const test::TempFolder folder;
  EXPECT_THAT(MessageFor(Files("idx", folder.path())),
              AllOf(StartsWith(folder / "train-images-idx3-ubyte"), HasSubstr("none with .gz")));
  test::WriteIdxFolder(folder.path(), true);
  std::filesystem::remove(folder / "t10k-labels-idx1-ubyte.gz");
  EXPECT_THAT(MessageFor(Files("idx", folder.path())),
              StartsWith(folder / "t10k-labels-idx1-ubyte"));
  EXPECT_THAT(MessageFor(Files("idx", "")), HasSubstr("data.path"));
}

// Each case replaces one file of a good folder.
struct BadFile {
  std::string name;
  std::string bytes;
  std::string complaint;
};

TEST(Idx, BadFilesAreNamedAndExplained) {
  const std::string images = "train-images-idx3-ubyte", labels = "train-labels-idx1-ubyte";
  const std::vector<BadFile> cases = {
      {images, "", "ends within the header"},
      {images, test::IdxHeader({6, 3, 4}).substr(0, 11), "ends within the header"},
      {images, "<html>not found</html>", "starts with 3c68746d"},
      {images, test::IdxHeader({6}) + test::Pixels(1, 6), "starts with 00000801"},
      {images, test::IdxHeader({6, 3, 4}) + test::Pixels(6, 12).substr(0, 71),
       "ends after 71 of the 72"},
      {images, test::IdxHeader({6, 3, 4}) + test::Pixels(6, 12) + "x", "goes on after the 72"},
      {images, test::IdxHeader({0, 3, 4}), "dimension 1 of 0"},
      {images, test::IdxHeader({4294967295u, 4294967295u, 4294967295u}), "which cannot be"},
      {images, test::IdxHeader({400000000u, 10, 10}) + "few", "ends after 3 of the 40000000000"},
      {labels, test::IdxHeader({5}) + std::string(5, '\0'), "5 labels for the 6 images"},
      {"t10k-labels-idx1-ubyte", test::IdxHeader({4}) + std::string("\0\1\2\3", 4), "label 3"},
  };
  for (const BadFile& bad : cases) {
    const test::TempFolder folder;
    test::WriteIdxFolder(folder.path(), false);
    test::WriteFile(folder / bad.name, bad.bytes);
    EXPECT_THAT(MessageFor(Files("idx", folder.path())),
                AllOf(StartsWith(folder / bad.name), HasSubstr(bad.complaint)));
  }
}

TEST(Idx, TestImagesOfAnotherSizeAreRefused) {
  const test::TempFolder folder;
  test::WriteIdxFolder(folder.path(), false);
  test::WriteFile(folder / "t10k-images-idx3-ubyte",
                  test::IdxHeader({4, 4, 3}) + test::Pixels(4, 12));
  EXPECT_THAT(MessageFor(Files("idx", folder.path())),
              HasSubstr("training images of 3x4, test images of 4x3"));
}

TEST(Idx, BrokenGzipIsNamed) {
  const test::TempFolder folder;
  test::WriteIdxFolder(folder.path(), true);
  const std::string path = folder / "train-images-idx3-ubyte.gz";
  const std::string whole = test::ReadFile(path);
  for (std::size_t size = 18; size < whole.size(); ++size) {
    test::WriteFile(path, whole.substr(0, size));
    ASSERT_THAT(MessageFor(Files("idx", folder.path())), StartsWith(path)) << size;
  }
  test::WriteFile(path, whole.substr(0, whole.size() - 4));
  EXPECT_THAT(MessageFor(Files("idx", folder.path())), HasSubstr("cut off"));
  std::string flipped = whole;
  flipped[whole.size() - 6] ^= 1;  // in the check sum
  test::WriteFile(path, flipped);
  EXPECT_THAT(MessageFor(Files("idx", folder.path())),
              AllOf(StartsWith(path), HasSubstr("broken gzip file")));
}

TEST(Cifar10, ReadsItsSixFiles) {
  const test::TempFolder folder;
  test::WriteCifarFolder(folder.path());
  const auto dataset = OpenDataset(Files("cifar10", folder.path()), 1);
  ASSERT_TRUE(dataset.ok()) << dataset.error().message;
  EXPECT_EQ((*dataset)->size(Split::kTrain), 10u);
  EXPECT_EQ((*dataset)->size(Split::kTest), 1u);
  EXPECT_EQ((*dataset)->classes(), 10u);
  EXPECT_EQ((*dataset)->shape(), (ImageShape{3, 32, 32}));
  Batch batch;
  (*dataset)->FillBatch(Split::kTrain, std::vector<std::uint32_t>{4, 5}, batch);
  EXPECT_EQ(batch.labels[0], 3);
  EXPECT_EQ(batch.labels[1], 6);
}

TEST(Cifar10, BadFilesAreNamedAndExplained) {
  const std::vector<BadFile> cases = {
      {"data_batch_3.bin", "", "empty file"},
      {"data_batch_3.bin", test::CifarRecord(1, 1) + "\1", "ends within record 1"},
      {"test_batch.bin", test::CifarRecord(10, 1), "record 0 has label 10"},
  };
  for (const BadFile& bad : cases) {
    const test::TempFolder folder;
    test::WriteCifarFolder(folder.path());
    test::WriteFile(folder / bad.name, bad.bytes);
    EXPECT_THAT(MessageFor(Files("cifar10", folder.path())),
                AllOf(StartsWith(folder / bad.name), HasSubstr(bad.complaint)));
  }
  const test::TempFolder folder;
  test::WriteCifarFolder(folder.path());
  std::filesystem::remove(folder / "data_batch_5.bin");
  EXPECT_THAT(MessageFor(Files("cifar10", folder.path())),
              StartsWith(folder / "data_batch_5.bin: No such file"));
}

TEST(OpenDataset, NamesTheNearestWord) {
  EXPECT_THAT(MessageFor(Files("cifar", "/nowhere")), HasSubstr("did you mean 'cifar10'?"));
  DataSection section = Files("idx", "/nowhere");
  section.augment = "shfit";
  EXPECT_THAT(MessageFor(section), HasSubstr("did you mean 'shift'?"));
}

TEST(OpenDataset, ReadsFashionMnist) {
  const std::string folder = "/usr/share/datasets/fashion-mnist";
  if (!std::filesystem::exists(folder)) GTEST_SKIP() << "dataset-fashion-mnist is not installed";
  const auto dataset = OpenDataset(Files("idx", folder), 1);
  ASSERT_TRUE(dataset.ok()) << dataset.error().message;
  EXPECT_EQ((*dataset)->size(Split::kTrain), 60000u);
  EXPECT_EQ((*dataset)->size(Split::kTest), 10000u);
  EXPECT_EQ((*dataset)->classes(), 10u);
  EXPECT_EQ((*dataset)->shape(), (ImageShape{1, 28, 28}));
}

}  // namespace
}  // namespace lockstep::worker
