#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "base/ini.h"
#include "base/options.h"

namespace lockstep {
namespace {

// An integer and nothing else: no sign, no blank, no overflow.
template <class T>
bool ParseWhole(std::string_view text, T& value) {
  const char* end = text.data() + text.size();
  const auto [at, failed] = std::from_chars(text.data(), end, value);
  return failed == std::errc() && at == end;
}

// A finite decimal number and nothing else.
bool ParseDecimal(std::string_view text, double& value) {
  const char* end = text.data() + text.size();
  const auto [at, failed] = std::from_chars(text.data(), end, value);
  return failed == std::errc() && at == end && std::isfinite(value);
}

// The shortest decimal text that gives the same number back.
std::string ShortestDecimal(double value) { return fmt::format("{}", value); }

// The same without an exponent, for numbers that a unit follows.
std::string ShortestFixed(double value) {
  char text[512];
  const auto end = std::to_chars(text, text + sizeof text, value, std::chars_format::fixed).ptr;
  return std::string(text, end);
}

Error ExpectedForm(const std::string& form) { return {ErrorCode::kInvalid, "expected " + form}; }

template <class T>
OptionType<T> Whole(T min, T max) {
  OptionType<T> type;
  type.placeholder = std::string("N");
  type.form = fmt::format("a whole number, {} to {}", min, max);
  type.parse = [min, max, form = type.form](std::string_view text) -> Result<T> {
    T value = 0;
    if (!ParseWhole(text, value) || value < min || value > max) return ExpectedForm(form);
    return value;
  };
  type.format = [](const T& value) { return fmt::format("{}", value); };
  return type;
}

std::string Joined(const std::vector<std::string>& words, const char* between) {
  std::string text;
  for (const std::string& word : words) {
    if (!text.empty()) text += between;
    text += word;
  }
  return text;
}

struct NamedUnit {
  std::string_view name;
  std::uint64_t bytes;
};
constexpr NamedUnit kByteUnits[] = {
    {"GiB", 1u << 30}, {"MiB", 1u << 20}, {"KiB", 1u << 10}, {"B", 1}, {"", 1}};

std::string FormatBytes(std::uint64_t value) {
  for (const NamedUnit& unit : kByteUnits) {
    if (unit.bytes > 1 && value > 0 && value % unit.bytes == 0) {
      return fmt::format("{}{}", value / unit.bytes, unit.name);
    }
  }
  return fmt::format("{}", value);
}

bool ParseBytes(std::string_view text, std::uint64_t& value) {
  const auto digits = std::min(text.find_first_not_of("0123456789"), text.size());
  if (!ParseWhole(text.substr(0, digits), value)) return false;
  for (const NamedUnit& unit : kByteUnits) {
    if (text.substr(digits) == unit.name) return !__builtin_mul_overflow(value, unit.bytes, &value);
  }
  return false;
}

}  // namespace

OptionType<std::uint32_t> Count(std::uint32_t min, std::uint32_t max) { return Whole(min, max); }

OptionType<std::uint64_t> WideCount(std::uint64_t min, std::uint64_t max) {
  return Whole(min, max);
}

OptionType<double> Number(double min, double max, bool below) {
  OptionType<double> type;
  type.placeholder = std::string("X");
  type.form = fmt::format("a number, {} {} {}", min, below ? "to below" : "to", max);
  type.parse = [min, max, below, form = type.form](std::string_view text) -> Result<double> {
    double value = 0;
    if (!ParseDecimal(text, value) || value < min || value > max || (below && value == max)) {
      return ExpectedForm(form);
    }
    return value;
  };
  type.format = ShortestDecimal;
  return type;
}

Result<double> ParseDurationSeconds(std::string_view text) {
  const Error malformed = ExpectedForm("a time with its unit, as 20ms, 10s, 1.5s, 2min or 1h");
  const auto digits = std::min(text.find_first_not_of("0123456789."), text.size());
  const std::string_view unit = text.substr(digits);
  std::string number(text.substr(0, digits));
  double factor = 1;
  // The exponent is part of the text, so that 20ms is the double nearest to 0.02.
  if (unit == "ms") {
    number += "e-3";
  } else if (unit == "us") {
    number += "e-6";
  } else if (unit == "ns") {
    number += "e-9";
  } else if (unit == "min") {
    factor = 60;
  } else if (unit == "h") {
    factor = 3600;
  } else if (unit != "s") {
    return malformed;
  }
  double value = 0;
  if (digits == 0 || !ParseDecimal(number, value) || !std::isfinite(value * factor)) {
    return malformed;
  }
  return value * factor;
}

std::string FormatDurationSeconds(double seconds) {
  const std::string plain = ShortestFixed(seconds) + "s";
  if (seconds <= 0 || seconds >= 1) return plain;
  // A small time reads better in milliseconds, where that is shorter and the same double.
  const std::string in_ms = ShortestFixed(seconds * 1e3) + "ms";
  const auto back = ParseDurationSeconds(in_ms);
  return in_ms.size() < plain.size() && back.ok() && *back == seconds ? in_ms : plain;
}

OptionType<double> DurationSeconds(double min, double max) {
  OptionType<double> type;
  type.placeholder = std::string("TIME");
  type.form = fmt::format("a time with its unit, {} to {}", FormatDurationSeconds(min),
                          FormatDurationSeconds(max));
  type.parse = [min, max, form = type.form](std::string_view text) -> Result<double> {
    const Result<double> value = ParseDurationSeconds(text);
    if (!value) return value;
    if (*value < min || *value > max) return ExpectedForm(form);
    return value;
  };
  type.format = FormatDurationSeconds;
  return type;
}

OptionType<std::uint64_t> Bytes(std::uint64_t min, std::uint64_t max) {
  OptionType<std::uint64_t> type;
  type.placeholder = std::string("BYTES");
  type.form = fmt::format("a number of bytes, as 4MiB, 64KiB or 1048576, {} to {}",
                          FormatBytes(min), FormatBytes(max));
  type.parse = [min, max, form = type.form](std::string_view text) -> Result<std::uint64_t> {
    std::uint64_t value = 0;
    if (!ParseBytes(text, value) || value < min || value > max) return ExpectedForm(form);
    return value;
  };
  type.format = FormatBytes;
  return type;
}

OptionType<bool> TrueOrFalse() {
  OptionType<bool> type;
  type.placeholder = std::string("true|false");
  type.form = std::string("true or false");
  type.parse = [](std::string_view text) -> Result<bool> {
    if (text != "true" && text != "false") return ExpectedForm("true or false");
    return text == "true";
  };
  type.format = [](const bool& value) { return std::string(value ? "true" : "false"); };
  return type;
}

OptionType<std::string> Choice(std::initializer_list<std::string_view> names) {
  OptionType<std::string> type;
  std::vector<std::string> known(names.begin(), names.end());
  type.placeholder = Joined(known, "|");
  type.form = known.size() == 1 ? known.front() : "one of " + Joined(known, ", ");
  type.parse = [known, form = type.form](std::string_view text) -> Result<std::string> {
    if (std::ranges::find(known, text) == known.end()) return ExpectedForm(form);
    return std::string(text);
  };
  type.format = [](const std::string& value) { return value; };
  return type;
}

OptionType<std::string> Text(std::string placeholder, std::string form) {
  OptionType<std::string> type;
  type.placeholder = std::move(placeholder);
  type.form = std::move(form);
  type.parse = [form = type.form](std::string_view text) -> Result<std::string> {
    if (!IsPrintable(text)) return ExpectedForm(form + " in UTF-8 without control characters");
    return std::string(text);
  };
  type.format = [](const std::string& value) { return value; };
  return type;
}

OptionType<std::vector<std::uint32_t>> Counts(std::uint32_t min, std::uint32_t max,
                                              std::size_t most) {
  using List = std::vector<std::uint32_t>;
  OptionType<List> type;
  type.placeholder = std::string("N,N,...");
  type.form =
      fmt::format("at most {} whole numbers with commas between, each {} to {}", most, min, max);
  type.parse = [min, max, most, form = type.form](std::string_view text) -> Result<List> {
    List values;
    while (!text.empty()) {
      const auto comma = text.find(',');
      std::string_view item = text.substr(0, comma);
      while (item.starts_with(' ')) item.remove_prefix(1);
      while (item.ends_with(' ')) item.remove_suffix(1);
      std::uint32_t value = 0;
      const bool dangling = comma != std::string_view::npos && comma + 1 == text.size();
      if (dangling || values.size() == most || !ParseWhole(item, value) || value < min ||
          value > max) {
        return ExpectedForm(form);
      }
      values.push_back(value);
      text.remove_prefix(comma == std::string_view::npos ? text.size() : comma + 1);
    }
    return values;
  };
  type.format = [](const List& values) {
    std::string text;
    for (const std::uint32_t value : values)
      text += fmt::format("{}{}", text.empty() ? "" : ",", value);
    return text;
  };
  return type;
}

}  // namespace lockstep
