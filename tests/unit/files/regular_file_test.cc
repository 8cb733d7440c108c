#include "base/regular_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>
#include <string>

#include "tests/temp_folder.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;

TEST(RegularFile, IsReadAsFarAsItMayBe) {
  const test::TempFolder folder;
  const std::string path = folder / "a";
  const std::string text(100'000, 'x');
  std::ofstream(path) << text;
  EXPECT_EQ(*ReadRegularFile(path, text.size()), text);
  const auto longer = ReadRegularFile(path, text.size() - 1);
  ASSERT_FALSE(longer.ok());
  EXPECT_EQ(longer.error().message, path + ": is longer than 99999 bytes");
  std::ofstream(folder / "empty");
  EXPECT_EQ(*ReadRegularFile(folder / "empty", 0), "");
}

TEST(RegularFile, WhatIsNoneIsNotOpened) {
  const test::TempFolder folder;
  const std::string fifo = folder / "fifo";
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  for (const std::string& path : {fifo, std::string("/dev/zero"), std::string("/dev/tty")}) {
    const auto file = OpenRegularFile(path);
    ASSERT_FALSE(file.ok());
    EXPECT_EQ(file.error().code, ErrorCode::kInvalid);
    EXPECT_EQ(file.error().message, path + ": is not a regular file");
  }
  EXPECT_THAT(OpenRegularFile(folder.path()).error().message, HasSubstr("is a directory"));
  const auto none = OpenRegularFile(folder / "none");
  EXPECT_EQ(none.error().code, ErrorCode::kNotFound);
  EXPECT_EQ(none.error().message, (folder / "none") + ": No such file or directory");
  EXPECT_EQ(OpenRegularFile("a\nb").error().message, "\"a?b\": No such file or directory");
  EXPECT_THAT(OpenRegularFile(std::string(5000, 'a')).error().message, HasSubstr("too long"));
}

}  // namespace
}  // namespace lockstep
