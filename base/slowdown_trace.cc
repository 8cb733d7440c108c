#include "base/slowdown_trace.h"

#include <fmt/format.h>

#include <cmath>
#include <sstream>
#include <utility>

#include "base/regular_file.h"

namespace lockstep {
namespace {

constexpr std::size_t kMaxTraceBytes = 1u << 20;

// "SECONDS FACTOR" as one point of the key `points`, which has the checks.
Result<TracePoint> ParsePoint(const std::string& seconds, const std::string& factor) {
  const auto one = ParseSlowdownSpec(fmt::format("pattern=trace,points={}:{}", seconds, factor));
  const bool plain = (seconds + factor).find_first_of(",;:=") == std::string::npos;
  if (!one || !plain) return Error{ErrorCode::kInvalid, "expected SECONDS FACTOR, as 12.5 4"};
  return one->points.front();
}

}  // namespace

Result<std::vector<TracePoint>> ParseTrace(std::string_view text, const std::string& name) {
  std::vector<TracePoint> points;
  int number = 0;
  const auto wrong = [&](std::string_view what) {
    return Error{ErrorCode::kInvalid, fmt::format("{}:{}: {}", name, number, what)};
  };
  while (!text.empty()) {
    ++number;
    const auto end = text.find('\n');
    std::istringstream line{std::string(text.substr(0, end).substr(0, text.find('#')))};
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    std::string seconds;
    std::string factor;
    std::string more;
    if (!(line >> seconds)) continue;
    line >> factor;
    if (line >> more) return wrong("expected SECONDS FACTOR, as 12.5 4");
    const Result<TracePoint> point = ParsePoint(seconds, factor);
    if (!point) return wrong(point.error().message);
    if (!points.empty() && point->at <= points.back().at) {
      return wrong("times must be ascending");
    }
    if (points.size() == kMaxTracePoints) {
      return wrong(fmt::format("more than {} lines", kMaxTracePoints));
    }
    points.push_back(*point);
  }
  if (points.empty()) return Error{ErrorCode::kInvalid, name + ": has no line SECONDS FACTOR"};
  return points;
}

Status LoadTrace(SlowdownSpec* spec) {
  if (spec->file.empty()) return {};
  const auto text = ReadRegularFile(spec->file, kMaxTraceBytes);
  if (!text) {
    return Error{ErrorCode::kInvalid, "slowdown file = " + text.error().message};
  }
  Result<std::vector<TracePoint>> points = ParseTrace(*text, spec->file);
  if (!points) return points.error();
  SlowdownSpec read = *spec;
  read.file.clear();
  read.points = *std::move(points);
  // Checks the rules between the points and the other keys.
  if (auto checked = ParseSlowdownSpec(ToString(read)); !checked) return checked.error();
  *spec = std::move(read);
  return {};
}

}  // namespace lockstep
