#include "tests/golden/golden.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

namespace lockstep {
namespace {

bool g_rewrite = false;

std::set<std::string>& Told() {
  static std::set<std::string> told;
  return told;
}

// A story that nobody tells any more is read all the same, and believed.
bool NothingIsLeftOver() {
  bool none = true;
  for (const auto& entry : std::filesystem::directory_iterator(LOCKSTEP_GOLDEN_DIR)) {
    const std::string name = entry.path().stem();
    const bool story = entry.path().extension() == ".txt" && name != "CMakeLists";
    if (!story || Told().contains(name)) continue;
    fmt::print("{}: no test tells this story\n", entry.path().string());
    none = false;
  }
  return none;
}

}  // namespace

void CompareWithFile(const std::string& text, const std::string& name) {
  EXPECT_TRUE(Told().insert(name).second) << name << " is the file of two tests";
  const std::string path = std::string(LOCKSTEP_GOLDEN_DIR) + "/" + name + ".txt";
  if (g_rewrite) {
    std::ofstream(path) << text;
    return;
  }
  std::ifstream file(path);
  ASSERT_TRUE(file) << path << " is missing: run with --rewrite";
  std::stringstream expected;
  expected << file.rdbuf();
  EXPECT_EQ(text, expected.str()) << path;
}

}  // namespace lockstep

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--rewrite") == 0) lockstep::g_rewrite = true;
  }
  if (RUN_ALL_TESTS() != 0) return 1;
  const auto& unit = *::testing::UnitTest::GetInstance();
  const bool all = unit.test_to_run_count() == unit.total_test_count();
  return !all || lockstep::NothingIsLeftOver() ? 0 : 1;
}
