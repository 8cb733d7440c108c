// A record beside the tests of what is refused where, compared as a whole or written anew.
#pragma once

#include <gtest/gtest.h>

#include <fstream>
#include <sstream>
#include <string>
#include <string_view>

namespace lockstep {

inline bool g_rewrite = false;

// --rewrite writes the records anew; the difference is for the reader to judge.
inline int RunRecords(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  g_rewrite = argc == 2 && std::string_view(argv[1]) == "--rewrite";
  return RUN_ALL_TESTS();
}

inline void ExpectAsRecorded(const std::string& text, const std::string& name) {
  const std::string path = std::string(LOCKSTEP_COMPATIBILITY_RECORDS) + "/" + name;
  if (g_rewrite) {
    std::ofstream(path, std::ios::binary | std::ios::trunc) << text;
    return;
  }
  std::ifstream in(path, std::ios::binary);
  std::ostringstream recorded;
  recorded << in.rdbuf();
  EXPECT_EQ(text, recorded.str()) << path << " differs; run this program with --rewrite";
}

}  // namespace lockstep
