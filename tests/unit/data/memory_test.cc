// Data that does not fit into the machine's memory is refused before it is read. Each in a process
// of its own with little address space, which the sanitizers do not bear.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <string>

#include "base/free_memory.h"
#include "tests/temp_folder.h"
#include "tests/unit/data/fixtures.h"
#include "worker/data/batch_ahead.h"
#include "worker/data/dataset.h"

namespace lockstep::worker {
namespace {

Status Opened(const DataSection& section) {
  const auto dataset = OpenDataset(section, 1);
  return dataset.ok() ? Status() : Status(dataset.error());
}

#ifndef LOCKSTEP_SANITIZED

constexpr std::uint64_t kAddressSpace = std::uint64_t{512} << 20;

// Ends this process as a program would: the error's line and status 2.
void EndWith(const std::function<Status()>& doing) {
  const rlimit limit{kAddressSpace, kAddressSpace};
  setrlimit(RLIMIT_AS, &limit);
  const Status status = doing();
  if (status.ok()) std::_Exit(0);
  std::fprintf(stderr, "%s\n", status.error().message.c_str());
  std::_Exit(status.error().code == ErrorCode::kUnavailable ? 2 : 1);
}

constexpr char kDoesNotFit[] = "of [0-9]+ bytes does not fit into the [0-9]+ bytes of free memory";

// So many zeros as gzip has them, a thousandth of it.
void WriteGzipOfZeros(const std::string& path, const std::string& begin, std::size_t zeros) {
  gzFile file = gzopen(path.c_str(), "wb1");
  const std::string block(std::size_t{1} << 20, '\0');
  gzwrite(file, begin.data(), static_cast<unsigned>(begin.size()));
  for (std::size_t written = 0; written < zeros; written += block.size()) {
    gzwrite(file, block.data(), static_cast<unsigned>(block.size()));
  }
  gzclose(file);
}

TEST(DataMemoryDeathTest, AnIdxFileThatPromisesTooMuch) {
  const test::TempFolder folder;
  test::WriteIdxFolder(folder.path(), true);
  const std::string path = folder / "train-images-idx3-ubyte.gz";
  WriteGzipOfZeros(path, test::IdxHeader({65536, 256, 256}), std::size_t{600} << 20);
  DataSection section;
  section.format = "idx";
  section.path = folder.path();
  EXPECT_EXIT(EndWith([&] { return Opened(section); }), testing::ExitedWithCode(2),
              "train-images-idx3-ubyte.gz: data " + std::string(kDoesNotFit));
}

TEST(DataMemoryDeathTest, AGzipFileThatComesToTooMuch) {
  const test::TempFolder folder;
  test::WriteCifarFolder(folder.path());
  std::filesystem::remove(folder / "data_batch_1.bin");
  WriteGzipOfZeros(folder / "data_batch_1.bin", "", std::size_t{600} << 20);
  DataSection section;
  section.format = "cifar10";
  section.path = folder.path();
  EXPECT_EXIT(EndWith([&] { return Opened(section); }), testing::ExitedWithCode(2),
              "data_batch_1.bin: data " + std::string(kDoesNotFit));
}

TEST(DataMemoryDeathTest, ASyntheticDatasetAtItsLargest) {
  DataSection section;
  section.format = "synthetic";
  section.synthetic_train = 1u << 24;
  section.synthetic_features = 1u << 16;
  EXPECT_EXIT(EndWith([&] { return Opened(section); }), testing::ExitedWithCode(2), kDoesNotFit);
  section.synthetic_train = 1;
  section.synthetic_test = 1;
  section.synthetic_classes = 1u << 16;  // their patterns alone
  EXPECT_EXIT(EndWith([&] { return Opened(section); }), testing::ExitedWithCode(2), kDoesNotFit);
}

TEST(DataMemoryDeathTest, AUnitOfTooManySamples) {
  DataSection section;
  section.format = "synthetic";
  section.synthetic_train = section.synthetic_test = 1000;
  section.synthetic_features = 1000;
  const auto dataset = OpenDataset(section, 1);
  ASSERT_TRUE(dataset.ok());
  BatchAhead batches(**dataset, 1);
  ASSERT_TRUE(batches.Reserve(100).ok());
  EXPECT_EXIT(EndWith([&] { return batches.Reserve(1u << 20); }), testing::ExitedWithCode(2),
              "a unit of 1048576 samples " + std::string(kDoesNotFit));
}

#endif

TEST(DataFiles, AFifoIsNotWaitedFor) {
  const test::TempFolder folder;
  test::WriteIdxFolder(folder.path(), false);
  const std::string path = folder / "train-labels-idx1-ubyte";
  std::filesystem::remove(path);
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  DataSection section;
  section.format = "idx";
  section.path = folder.path();
  EXPECT_EQ(Opened(section).error().message, path + ": not a regular file");
}

}  // namespace
}  // namespace lockstep::worker
