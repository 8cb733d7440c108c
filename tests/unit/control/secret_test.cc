#include "transport/control/secret.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "tests/unit/options/temp_file.h"

namespace lockstep::transport::control {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(Secret, KeysDependOnBytesAndPurpose) {
  const std::string a(16, 'a');
  const std::string b = std::string(15, 'a') + "b";
  const Secret first(std::as_bytes(std::span(a)));
  const Secret same(std::as_bytes(std::span(a)));
  const Secret other(std::as_bytes(std::span(b)));
  EXPECT_EQ(first.Derive("x"), same.Derive("x"));
  EXPECT_NE(first.Derive("x"), first.Derive("y"));
  EXPECT_NE(first.Derive("x"), other.Derive("x"));
}

TEST(Secret, FilesAreChecked) {
  TempFolder folder;
  const auto error = [](const std::string& path) {
    const auto file = ReadSecretFile(path);
    return file.ok() ? "" : file.error().message;
  };
  EXPECT_THAT(error(folder.path() + "/none"), HasSubstr("No such file"));
  EXPECT_THAT(error(folder.path()), HasSubstr("not a regular file"));
  EXPECT_THAT(error(folder.Write("empty", "")), HasSubstr("is empty"));
  EXPECT_THAT(error(folder.Write("short", "fifteen bytes..")), HasSubstr("has 15 bytes"));
  EXPECT_THAT(error(folder.Write("long", std::string(1 << 17, 'x'))), HasSubstr("more than"));
  EXPECT_EQ(error(folder.Write("good", "sixteen bytes...")), "");
}

TEST(Secret, OthersWhoCanReadItAreNamed) {
  TempFolder folder;
  const std::string path = folder.Write("secret", "sixteen bytes...");
  ASSERT_EQ(::chmod(path.c_str(), 0600), 0);
  auto file = ReadSecretFile(path);
  ASSERT_TRUE(file.ok());
  EXPECT_EQ(file->warning, "");
  ASSERT_EQ(::chmod(path.c_str(), 0644), 0);
  file = ReadSecretFile(path);
  ASSERT_TRUE(file.ok());
  EXPECT_THAT(file->warning, AllOf(HasSubstr(path), HasSubstr("mode 644")));
}

}  // namespace
}  // namespace lockstep::transport::control
