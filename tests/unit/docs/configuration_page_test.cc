// docs/reference/configuration.md tells of the options that the programs have. What stands below
// its marker is made from their declaration; with --rewrite this program writes it anew.

#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>

#include "base/job_options.h"

namespace lockstep {
namespace {

constexpr const char* kPage = LOCKSTEP_CONFIGURATION_PAGE;
constexpr std::string_view kMarker =
    "<!-- from here on written by: configuration_page_test --rewrite -->\n";

struct Page {
  std::string by_hand;    // up to the marker, with it
  std::string generated;  // what follows
};

std::optional<Page> ReadPage() {
  std::ifstream in(kPage, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  const std::string page = text.str();
  const auto at = page.find(kMarker);
  if (!in || at == std::string::npos) return std::nullopt;
  const auto end = at + kMarker.size();
  return Page{page.substr(0, end), page.substr(end)};
}

std::string Generated() {
  std::string text = ConfigurationReference();
  text.insert(text.begin(), '\n');
  return text;
}

TEST(ConfigurationPage, TellsOfTheOptionsAsTheyAre) {
  const auto page = ReadPage();
  ASSERT_TRUE(page) << kPage << ": not to be read, or without its marker";
  EXPECT_EQ(page->generated, Generated())
      << kPage << " is out of date; write it anew with configuration_page_test --rewrite";
}

int Rewrite() {
  const auto page = ReadPage();
  if (!page) {
    std::fprintf(stderr, "%s: not to be read, or without its marker\n", kPage);
    return 1;
  }
  std::ofstream out(kPage, std::ios::binary | std::ios::trunc);
  out << page->by_hand << Generated();
  out.flush();
  if (out) return 0;
  std::fprintf(stderr, "%s: cannot write\n", kPage);
  return 1;
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  if (argc == 2 && std::string_view(argv[1]) == "--rewrite") return lockstep::Rewrite();
  return RUN_ALL_TESTS();
}
