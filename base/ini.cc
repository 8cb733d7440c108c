#include "base/ini.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <optional>

namespace lockstep {
namespace {

std::string_view Trim(std::string_view text) {
  const auto blank = [](char c) { return c == ' ' || c == '\t'; };
  while (!text.empty() && blank(text.front())) text.remove_prefix(1);
  while (!text.empty() && blank(text.back())) text.remove_suffix(1);
  return text;
}

bool IsName(std::string_view text) {
  return !text.empty() && std::ranges::all_of(text, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-' || c == '.';
  });
}

bool IsCommentSign(char c) { return c == '#' || c == ';'; }

// Where a comment begins: at the start or after a blank.
std::string_view WithoutComment(std::string_view text) {
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (IsCommentSign(text[i]) && (i == 0 || text[i - 1] == ' ' || text[i - 1] == '\t')) {
      return Trim(text.substr(0, i));
    }
  }
  return Trim(text);
}

// The text between the quotes; nullopt when they do not match up.
std::optional<std::string> Unquote(std::string_view text) {
  std::string value;
  for (std::size_t i = 1; i < text.size(); ++i) {
    if (text[i] == '"') {
      return WithoutComment(text.substr(i + 1)).empty() ? std::optional(value) : std::nullopt;
    }
    if (text[i] == '\\') {
      if (++i == text.size() || (text[i] != '"' && text[i] != '\\')) return std::nullopt;
    }
    value += text[i];
  }
  return std::nullopt;
}

// Length of the UTF-8 sequence at the start of `text`; 0 when it is none.
std::size_t Utf8Length(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(0);
  if (first < 0x80) return 1;
  std::size_t length = 0;
  std::uint32_t point = 0;
  if (first >= 0xc2 && first <= 0xdf) {
    length = 2;
    point = first & 0x1fu;
  } else if (first >= 0xe0 && first <= 0xef) {
    length = 3;
    point = first & 0x0fu;
  } else if (first >= 0xf0 && first <= 0xf4) {
    length = 4;
    point = first & 0x07u;
  }
  if (length == 0 || text.size() < length) return 0;
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
    point = (point << 6) | (byte(i) & 0x3fu);
  }
  const bool overlong = (length == 3 && point < 0x800) || (length == 4 && point < 0x10000);
  const bool surrogate = point >= 0xd800 && point <= 0xdfff;
  return overlong || surrogate || point > 0x10ffff ? 0 : length;
}

// This includes those above ASCII (U+0080 to U+009F), which some terminals obey.
bool IsControl(std::string_view text) {
  const auto byte = static_cast<unsigned char>(text[0]);
  const bool above = byte == 0xc2 && text.size() > 1 && static_cast<unsigned char>(text[1]) < 0xa0;
  return byte < 0x20 || byte == 0x7f || above;
}
bool IsControl(char c) { return IsControl(std::string_view(&c, 1)); }

// Takes the next character off the text; "?" where it cannot be shown.
std::string_view TakeShown(std::string_view& text) {
  const std::size_t length = Utf8Length(text);
  const std::string_view shown =
      length == 0 || IsControl(text) ? std::string_view("?") : text.substr(0, length);
  text.remove_prefix(std::max<std::size_t>(length, 1));
  return shown;
}

// The error in the bytes of a line, if any.
std::optional<std::string> BadBytes(std::string_view line) {
  for (std::size_t i = 0; i < line.size();) {
    const std::size_t length = Utf8Length(line.substr(i));
    if (length == 0) return fmt::format("byte {} is no UTF-8 text", i + 1);
    if (IsControl(line[i]) && line[i] != '\t') {
      return fmt::format("byte {} is the control character 0x{:02x}", i + 1, line[i]);
    }
    i += length;
  }
  return std::nullopt;
}

}  // namespace

bool IsPrintable(std::string_view text) {
  for (std::size_t i = 0; i < text.size();) {
    const std::size_t length = Utf8Length(text.substr(i));
    if (length == 0 || IsControl(text.substr(i))) return false;
    i += length;
  }
  return true;
}

std::string Printable(std::string_view text) {
  std::string out;
  while (!text.empty()) out += TakeShown(text);
  return out;
}

std::string Quoted(std::string_view text) {
  constexpr std::size_t kLongest = 80;
  std::string out = "\"";
  const std::size_t size = text.size();
  while (!text.empty()) {
    if (size - text.size() >= kLongest) {
      out += "...";
      break;
    }
    out += TakeShown(text);
  }
  return out + "\"";
}

std::string IniValue(const std::string& value) {
  const std::string_view view = value;
  const bool plain = WithoutComment(view) == view && (view.empty() || view.front() != '"');
  if (plain) return value;
  std::string quoted = "\"";
  for (const char c : value) {
    if (c == '"' || c == '\\') quoted += '\\';
    quoted += c;
  }
  return quoted + "\"";
}

Result<std::vector<IniLine>> ScanIni(std::string_view text, const std::string& name) {
  if (text.size() > kMaxIniBytes) {
    return Error{ErrorCode::kInvalid,
                 fmt::format("{}: longer than {} bytes, no config", name, kMaxIniBytes)};
  }
  if (text.starts_with("\xef\xbb\xbf")) text.remove_prefix(3);  // the mark some editors put first
  std::vector<IniLine> lines;
  std::string section;
  for (int number = 1; !text.empty(); ++number) {
    const auto fail = [&](const std::string& what) {
      return Error{ErrorCode::kInvalid, fmt::format("{}:{}: {}", name, number, what)};
    };
    const auto end = text.find('\n');
    std::string_view line = text.substr(0, end);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (const auto bad = BadBytes(line)) return fail(*bad);
    line = Trim(line);
    if (line.empty() || IsCommentSign(line.front())) continue;
    if (line.front() == '[') {
      const std::string_view header = WithoutComment(line);
      const std::string_view inside = header.size() > 2 && header.back() == ']'
                                          ? Trim(header.substr(1, header.size() - 2))
                                          : "";
      if (!IsName(inside)) return fail(Quoted(line) + " is no section: expected [name]");
      section = inside;
      lines.push_back({number, section, "", ""});
      continue;
    }
    const auto equals = line.find('=');
    const std::string_view key = Trim(line.substr(0, equals));
    if (equals == std::string_view::npos || !IsName(key)) {
      return fail(Quoted(line) + " is neither key = value nor [section] nor # comment");
    }
    const std::string_view raw = Trim(line.substr(equals + 1));
    if (!raw.empty() && raw.front() == '"') {
      auto value = Unquote(raw);
      if (!value) {
        return fail(fmt::format("the quoted value of {} does not end as it should: {}", Quoted(key),
                                Quoted(raw)));
      }
      lines.push_back({number, section, std::string(key), *std::move(value)});
    } else {
      lines.push_back({number, section, std::string(key), std::string(WithoutComment(raw))});
    }
  }
  return lines;
}

}  // namespace lockstep
