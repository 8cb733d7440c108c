// Libraries that are not the UCX that is wanted, and then the one that is.
#include "transport/ucx/library.h"

#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>

#include "tests/temp_folder.h"

namespace lockstep::transport::ucx {
namespace {

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

std::string WhyNot(const std::string& file) {
  const Status status = OpenLibrary(file);
  if (status) return "it was opened";
  EXPECT_EQ(status.error().code, ErrorCode::kUnavailable);
  EXPECT_EQ(status.error().message.find('\n'), std::string::npos);
  EXPECT_EQ(ucp_init_version, nullptr) << file;
  return status.error().message;
}

TEST(Library, SaysWhyItIsNotThere) {
  EXPECT_THAT(WhyNot("libucp-nowhere.so.0"),
              StartsWith("UCX is not on this machine: libucp-nowhere.so.0: "));
  const test::TempFolder folder;
  const std::string text = folder / "libucp.so.0";
  std::ofstream(text) << "not a library";
  EXPECT_THAT(WhyNot(text), StartsWith("UCX cannot be loaded: " + text + ": "));

  std::filesystem::remove(text);
  std::filesystem::create_symlink(NEXT_UCX, folder / "libucp.so.1");
  EXPECT_EQ(WhyNot(text),
            "this works with the UCX of " + text + ", and here is " + (folder / "libucp.so.1"));

  EXPECT_THAT(WhyNot(NOT_UCX), EndsWith(" is not UCX: it has no ucp_get_version"));
  EXPECT_THAT(WhyNot(OLD_UCX), AllOf(StartsWith("UCX 1.12.3 ("), HasSubstr("ucx_other_old"),
                                     EndsWith(" does not fit: it has to be 1.13 or a later 1.x")));
  EXPECT_THAT(WhyNot(NEXT_UCX), StartsWith("UCX 2.13.3 ("));
  EXPECT_THAT(WhyNot(PART_OF_UCX),
              AllOf(StartsWith("UCX 1.13.3 ("), HasSubstr(" is not whole: it has no ucp_")));

  // None of that is in the way of the real one.
  const Status status = OpenLibrary();
  ASSERT_TRUE(status) << status.error().message;
  EXPECT_NE(ucp_init_version, nullptr);
  EXPECT_TRUE(LibraryHasMinor(kOldestMinor));
  EXPECT_FALSE(LibraryHasMinor(1000));
  EXPECT_THAT(LibraryFile(), HasSubstr("libucp.so"));
  EXPECT_STREQ(ucs_status_string(UCS_OK), "Success");
}

}  // namespace
}  // namespace lockstep::transport::ucx
