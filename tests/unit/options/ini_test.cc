#include "base/ini.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/property_check.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

std::string ErrorOf(std::string_view text) {
  const auto lines = ScanIni(text, "job.ini");
  return lines.ok() ? "" : lines.error().message;
}

std::string ValueOf(const std::string& written) {
  const auto lines = ScanIni("[s]\nk = " + written + "\n", "job.ini");
  EXPECT_TRUE(lines.ok()) << lines.error().message;
  return lines->at(1).value;
}

TEST(Ini, ReadsSectionsKeysAndComments) {
  const auto lines = ScanIni(
      "\xef\xbb\xbf# head\r\n"
      "\n"
      "[ policy ] ; which\n"
      "\tname=flexrr # why\n"
      "  ; old\n"
      "[a.b]\n"
      "path =\n"
      "last = /x#y;z",
      "job.ini");
  ASSERT_TRUE(lines.ok()) << lines.error().message;
  ASSERT_EQ(lines->size(), 5u);
  EXPECT_EQ((*lines)[0].section, "policy");
  EXPECT_EQ((*lines)[0].key, "");
  EXPECT_EQ((*lines)[1].number, 4);
  EXPECT_EQ((*lines)[1].section, "policy");
  EXPECT_EQ((*lines)[1].key, "name");
  EXPECT_EQ((*lines)[1].value, "flexrr");
  EXPECT_EQ((*lines)[3].value, "");
  EXPECT_EQ((*lines)[4].section, "a.b");
  EXPECT_EQ((*lines)[4].value, "/x#y;z");
}

TEST(Ini, QuotesKeepAValueAsItIs) {
  EXPECT_EQ(ValueOf(R"(" a # b ")"), " a # b ");
  EXPECT_EQ(ValueOf(R"("a\"b\\c"  # comment)"), R"(a"b\c)");
  EXPECT_EQ(ValueOf(R"("")"), "");
  EXPECT_EQ(ValueOf(R"(a "b")"), R"(a "b")");
  EXPECT_THAT(ErrorOf("[s]\nk = \"a"), StartsWith("job.ini:2: "));
  EXPECT_THAT(ErrorOf("[s]\nk = \"a\" b"), HasSubstr("quoted value"));
  EXPECT_THAT(ErrorOf("[s]\nk = \"a\\n\""), HasSubstr("quoted value"));
}

TEST(Ini, NamesTheLineOfGarbage) {
  EXPECT_THAT(ErrorOf("[s]\nk = 1\nwhat is this\n"), StartsWith("job.ini:3: \"what is this\""));
  EXPECT_THAT(ErrorOf("[s]\n= 1"), StartsWith("job.ini:2: "));
  EXPECT_THAT(ErrorOf("[s]\na b = 1"), StartsWith("job.ini:2: "));
  EXPECT_THAT(ErrorOf("[s"), HasSubstr("is no section"));
  EXPECT_THAT(ErrorOf("[]"), HasSubstr("is no section"));
  EXPECT_THAT(ErrorOf("[a b]"), HasSubstr("is no section"));
  EXPECT_THAT(ErrorOf(std::string_view("[s]\nk = a\0b", 11)), HasSubstr("control character 0x00"));
  EXPECT_THAT(ErrorOf("[s]\nk = \xff\xfe"), StartsWith("job.ini:2: byte 5 is no UTF-8"));
  EXPECT_THAT(ErrorOf("\xc0\x80"), HasSubstr("no UTF-8"));          // overlong
  EXPECT_THAT(ErrorOf("\xed\xa0\x80"), HasSubstr("no UTF-8"));      // surrogate
  EXPECT_THAT(ErrorOf("\xf4\x90\x80\x80"), HasSubstr("no UTF-8"));  // beyond the last point
  EXPECT_EQ(ErrorOf("[s]\nk = gr\xc3\xbc\xc3\x9f \xe2\x82\xac \xf0\x9f\x8c\x8d"), "");
  EXPECT_THAT(ErrorOf(std::string(kMaxIniBytes + 1, '\n')), HasSubstr("longer than"));
}

TEST(Ini, MessagesStayOnOneLineWhateverTheInput) {
  std::size_t refused = 0;
  ExpectHolds("ScanIni never fails otherwise than with one line", [&](const std::string& text) {
    const auto lines = ScanIni("[s]\n" + text, "job.ini");
    if (lines.ok()) return;
    ++refused;
    RC_ASSERT(IsPrintable(lines.error().message));
    RC_ASSERT(lines.error().message.starts_with("job.ini:"));
  });
  EXPECT_GT(refused, 30u);
  EXPECT_EQ(Quoted("a\nb\xff"), "\"a?b?\"");
  EXPECT_EQ(Quoted(std::string(200, 'x')), "\"" + std::string(80, 'x') + "...\"");
}

TEST(Ini, AnyPrintableValueRoundTrips) {
  ExpectHolds("ScanIni reads back what IniValue writes", [] {
    const auto value =
        *rc::gen::container<std::string>(rc::gen::elementOf(std::string("ab #;\"\\=[] \xc2\xa0")));
    RC_PRE(IsPrintable(value));
    RC_ASSERT(ValueOf(IniValue(value)) == value);
  });
}

}  // namespace
}  // namespace lockstep
