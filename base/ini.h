// The lines of an INI file, before the known keys are looked up.
//
//   # a comment, also with ;          [section]
//   key = value   # comment           key = " value kept as it is, with \" and \\ "
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace lockstep {

struct IniLine {
  int number = 0;
  std::string section;  // empty before the first [section]
  std::string key;      // empty: the line opens `section`
  std::string value;
};

// The largest file that is read.
inline constexpr std::size_t kMaxIniBytes = 1u << 20;

// Lines that are neither section, setting, comment nor blank are errors, and so are bytes that are
// no text. Errors begin with "name:line: ".
Result<std::vector<IniLine>> ScanIni(std::string_view text, const std::string& name);

// The value in the form that ScanIni reads back unchanged, quoted where necessary.
std::string IniValue(const std::string& value);

// True for valid UTF-8 without control characters (a tab is one).
bool IsPrintable(std::string_view text);

// The text on one line, with "?" for each control character and each byte that is not UTF-8.
std::string Printable(std::string_view text);

// A text for messages: in quotes, on one line, cut when it is long, with "?" for bytes that cannot
// be shown.
std::string Quoted(std::string_view text);

}  // namespace lockstep
