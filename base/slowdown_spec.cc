#include "base/slowdown_spec.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <vector>

#include "base/ini.h"
#include "base/options.h"
#include "base/suggest.h"

namespace lockstep {
namespace {

constexpr double kLargestFactor = 1e6;
constexpr double kLongestSeconds = 1e9;

const std::vector<std::string>& KnownKeys() {
  static const std::vector<std::string> keys = {"factor", "worker", "from", "for", "pattern"};
  return keys;
}

Error Invalid(std::string_view key, std::string_view value, std::string_view what) {
  return {ErrorCode::kInvalid, fmt::format("slowdown {} = {}: {}", key, Quoted(value), what)};
}

template <class T>
bool ParseNumber(std::string_view text, T& value) {
  const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), value);
  return !text.empty() && failed == std::errc() && end == text.data() + text.size();
}

Result<Duration> ParseTime(std::string_view key, std::string_view value) {
  const Result<double> seconds = ParseDurationSeconds(value);
  if (!seconds) return Invalid(key, value, seconds.error().message);
  if (*seconds > kLongestSeconds) return Invalid(key, value, "is too long");
  // Rounded: 0.3 s are 300000000 ns, although the double is a little less.
  return Duration(std::llround(*seconds * 1e9));
}

Status TakeKey(std::string_view key, std::string_view value, SlowdownSpec& spec) {
  if (key == "factor") {
    if (!ParseNumber(value, spec.factor) || !(spec.factor >= 1) || spec.factor > kLargestFactor) {
      return Invalid(key, value, "expected a number, 1 to 1000000");
    }
  } else if (key == "worker") {
    std::uint32_t worker = 0;
    if (!ParseNumber(value, worker)) return Invalid(key, value, "expected a worker's number");
    spec.worker = WorkerId(worker);
  } else if (key == "from") {
    const Result<Duration> time = ParseTime(key, value);
    if (!time) return time.error();
    spec.from = *time;
  } else if (key == "for") {
    const Result<Duration> time = ParseTime(key, value);
    if (!time) return time.error();
    spec.length = *time;
  } else if (key == "pattern") {
    if (value != "constant") return Invalid(key, value, "unknown pattern; known is constant");
  } else {
    return Error{ErrorCode::kInvalid,
                 fmt::format("slowdown {}: unknown key (did you mean {}?); known are factor, "
                             "worker, from, for, pattern",
                             Quoted(key), Quoted(Nearest(key, KnownKeys())))};
  }
  return {};
}

std::string FormatTime(Duration time) {
  return time.count() % 1'000'000'000 == 0 ? fmt::format("{}s", time.count() / 1'000'000'000)
         : time.count() % 1'000'000 == 0   ? fmt::format("{}ms", time.count() / 1'000'000)
                                           : fmt::format("{}ns", time.count());
}

}  // namespace

Result<SlowdownSpec> ParseSlowdownSpec(std::string_view text) {
  SlowdownSpec spec;
  std::vector<std::string_view> seen;
  bool more = true;
  while (more) {
    const auto comma = text.find(',');
    more = comma != std::string_view::npos;
    const std::string_view item = text.substr(0, comma);
    text.remove_prefix(more ? comma + 1 : text.size());
    const auto equals = item.find('=');
    if (equals == std::string_view::npos || equals == 0) {
      return Error{
          ErrorCode::kInvalid,
          fmt::format("slowdown {}: expected key=value,..., as worker=2,factor=4", Quoted(item))};
    }
    const std::string_view key = item.substr(0, equals);
    for (const std::string_view other : seen) {
      if (other == key) return Invalid(key, item.substr(equals + 1), "given twice");
    }
    seen.push_back(key);
    if (Status taken = TakeKey(key, item.substr(equals + 1), spec); !taken) return taken.error();
  }
  bool has_factor = false;
  for (const std::string_view key : seen) has_factor = has_factor || key == "factor";
  if (!has_factor) {
    return Error{ErrorCode::kInvalid, "slowdown: factor is missing, as worker=2,factor=4"};
  }
  return spec;
}

std::string ToString(const SlowdownSpec& spec) {
  std::string text;
  if (spec.worker) text += fmt::format("worker={},", *spec.worker);
  text += fmt::format("factor={}", spec.factor);
  if (spec.from != Duration::zero()) text += ",from=" + FormatTime(spec.from);
  if (spec.length) text += ",for=" + FormatTime(*spec.length);
  return text;
}

bool AppliesTo(const SlowdownSpec& spec, WorkerId worker) {
  return !spec.worker || *spec.worker == worker;
}

double FactorAt(const SlowdownSpec& spec, Duration since_start) {
  const bool begun = since_start >= spec.from;
  const bool over = spec.length && since_start - spec.from >= *spec.length;
  return begun && !over ? spec.factor : 1;
}

}  // namespace lockstep
