#include "base/slowdown_spec.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
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
// Spells repeat; shorter ones would be lost in the length of a unit and cost time to follow.
constexpr Duration kShortestSpell = std::chrono::milliseconds(1);

struct PatternName {
  std::string_view name;
  SlowdownPattern pattern;
};
constexpr std::array kPatterns = {PatternName{"constant", SlowdownPattern::kConstant},
                                  PatternName{"slow-worker", SlowdownPattern::kSlowWorker},
                                  PatternName{"disrupted", SlowdownPattern::kDisrupted},
                                  PatternName{"power-law", SlowdownPattern::kPowerLaw},
                                  PatternName{"pause", SlowdownPattern::kPause},
                                  PatternName{"delay", SlowdownPattern::kDelay},
                                  PatternName{"trace", SlowdownPattern::kTrace}};

std::string_view Name(SlowdownPattern pattern) {
  return std::ranges::find(kPatterns, pattern, &PatternName::pattern)->name;
}

Error Invalid(std::string_view key, std::string_view value, std::string_view what) {
  return {ErrorCode::kInvalid, fmt::format("slowdown {} = {}: {}", key, Quoted(value), what)};
}

template <class T>
bool ParseNumber(std::string_view text, T& value) {
  const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), value);
  return !text.empty() && failed == std::errc() && end == text.data() + text.size();
}

// Takes a key's value; the error's message follows "slowdown KEY = VALUE: ".
using Taker = Status (*)(std::string_view value, SlowdownSpec& spec);

Error Expected(std::string_view what) {
  return {ErrorCode::kInvalid, fmt::format("expected {}", what)};
}

Status TakeTime(std::string_view value, Duration least, Duration& time) {
  const Result<double> seconds = ParseDurationSeconds(value);
  if (!seconds) return seconds.error();
  if (*seconds > kLongestSeconds) return Error{ErrorCode::kInvalid, "is too long"};
  // The value is rounded: 0.3 s are 300000000 ns, although the double is a little less.
  time = Duration(std::llround(*seconds * 1e9));
  if (time < least) {
    return Error{ErrorCode::kInvalid, fmt::format("must be at least {} ms", Seconds(least) * 1e3)};
  }
  return {};
}

Status TakeDouble(std::string_view value, double least, double most, double& number) {
  if (!ParseNumber(value, number) || !(number >= least) || !(number <= most)) {
    return Expected(fmt::format("a number, {:g} to {:.0f}", least, most));
  }
  return {};
}

// "A" or "A..B".
template <class T, class TakeOne>
Status TakeRange(std::string_view value, TakeOne&& take, T& least, T& most) {
  const auto dots = value.find("..");
  if (Status taken = take(value.substr(0, dots), least); !taken) return taken;
  most = least;
  if (dots == std::string_view::npos) return {};
  if (Status taken = take(value.substr(dots + 2), most); !taken) return taken;
  if (most < least) return Expected("the smaller one first");
  return {};
}

Status TakeFactor(std::string_view value, SlowdownSpec& spec) {
  return TakeRange(
      value,
      [](std::string_view text, double& number) {
        return TakeDouble(text, 1, kLargestFactor, number);
      },
      spec.factor, spec.factor_most);
}

Status TakeDelay(std::string_view value, SlowdownSpec& spec) {
  return TakeRange(
      value,
      [](std::string_view text, Duration& time) { return TakeTime(text, Duration::zero(), time); },
      spec.delay, spec.delay_most);
}

Status TakeWorker(std::string_view value, SlowdownSpec& spec) {
  std::uint32_t worker = 0;
  if (!ParseNumber(value, worker)) return Expected("a worker's number");
  spec.worker = WorkerId(worker);
  return {};
}

Status TakeFor(std::string_view value, SlowdownSpec& spec) {
  Duration length{};
  if (Status taken = TakeTime(value, Duration::zero(), length); !taken) return taken;
  spec.length = length;
  return {};
}

Status TakeWorkers(std::string_view value, SlowdownSpec& spec) {
  if (!ParseNumber(value, spec.workers) || spec.workers == 0)
    return Expected("a number of workers");
  return {};
}

Status TakeFile(std::string_view value, SlowdownSpec& spec) {
  if (value.empty()) return Expected("a file's name");
  spec.file = value;
  return {};
}

// "SECONDS:FACTOR;..."
Status TakePoints(std::string_view value, SlowdownSpec& spec) {
  for (bool more = true; more;) {
    const auto semicolon = value.find(';');
    more = semicolon != std::string_view::npos;
    const std::string_view item = value.substr(0, semicolon);
    value.remove_prefix(more ? semicolon + 1 : value.size());
    const auto colon = item.find(':');
    double seconds = 0;
    TracePoint point;
    if (colon == std::string_view::npos || !ParseNumber(item.substr(0, colon), seconds) ||
        !(seconds >= 0) || seconds > kLongestSeconds ||
        !ParseNumber(item.substr(colon + 1), point.factor) || !(point.factor > 0) ||
        point.factor > kLargestFactor) {
      return Expected("SECONDS:FACTOR;... as 0:1;10:4;15:1");
    }
    point.at = Duration(std::llround(seconds * 1e9));
    if (!spec.points.empty() && point.at <= spec.points.back().at) {
      return Expected("ascending times");
    }
    if (spec.points.size() == kMaxTracePoints) {
      return Expected(fmt::format("at most {} points", kMaxTracePoints));
    }
    spec.points.push_back(point);
  }
  return {};
}

Status TakeLoop(std::string_view value, SlowdownSpec& spec) {
  if (value != "0" && value != "1") return Expected("0 or 1");
  spec.loop = value == "1";
  return {};
}

constexpr unsigned Of(SlowdownPattern pattern) { return 1u << static_cast<unsigned>(pattern); }
constexpr unsigned kAll = ~0u;
using enum SlowdownPattern;

struct Key {
  std::string_view name;
  unsigned allowed;   // for which patterns
  unsigned required;  // in which patterns
  Taker take;
};

template <Duration SlowdownSpec::*field>
Status TakeSpell(std::string_view value, SlowdownSpec& spec) {
  return TakeTime(value, kShortestSpell, spec.*field);
}

constexpr std::array kKeys = {Key{"worker", kAll, 0, TakeWorker},
                              Key{"factor", Of(kConstant) | Of(kSlowWorker) | Of(kDisrupted),
                                  Of(kConstant) | Of(kDisrupted), TakeFactor},
                              Key{"from", kAll, 0,
                                  [](std::string_view value, SlowdownSpec& spec) {
                                    return TakeTime(value, Duration::zero(), spec.from);
                                  }},
                              Key{"for", kAll, 0, TakeFor},
                              Key{"seed", kAll, 0,
                                  [](std::string_view value, SlowdownSpec& spec) -> Status {
                                    if (!ParseNumber(value, spec.seed))
                                      return Expected("a whole number");
                                    return {};
                                  }},
                              Key{"p", Of(kSlowWorker) | Of(kDelay), Of(kSlowWorker) | Of(kDelay),
                                  [](std::string_view value, SlowdownSpec& spec) {
                                    return TakeDouble(value, 0, 1, spec.probability);
                                  }},
                              Key{"delay", Of(kSlowWorker), 0, TakeDelay},
                              Key{"length", Of(kDisrupted) | Of(kPause),
                                  Of(kDisrupted) | Of(kPause), TakeSpell<&SlowdownSpec::spell>},
                              Key{"gap", Of(kDisrupted), 0,
                                  [](std::string_view value, SlowdownSpec& spec) {
                                    return TakeTime(value, Duration::zero(), spec.gap);
                                  }},
                              Key{"workers", Of(kDisrupted), 0, TakeWorkers},
                              Key{"alpha", Of(kPowerLaw), Of(kPowerLaw),
                                  [](std::string_view value, SlowdownSpec& spec) {
                                    return TakeDouble(value, 0.01, 1000, spec.alpha);
                                  }},
                              Key{"max", Of(kPowerLaw), Of(kPowerLaw),
                                  [](std::string_view value, SlowdownSpec& spec) {
                                    return TakeDouble(value, 1, kLargestFactor, spec.most);
                                  }},
                              Key{"every", Of(kPause), Of(kPause), TakeSpell<&SlowdownSpec::every>},
                              Key{"times", Of(kDelay), Of(kDelay),
                                  [](std::string_view value, SlowdownSpec& spec) {
                                    return TakeDouble(value, 0, kLargestFactor, spec.times);
                                  }},
                              Key{"file", Of(kTrace), 0, TakeFile},
                              Key{"points", Of(kTrace), 0, TakePoints},
                              Key{"loop", Of(kTrace), 0, TakeLoop}};

std::vector<std::string> KeysOf(SlowdownPattern pattern) {
  std::vector<std::string> names = {"pattern"};
  for (const Key& key : kKeys) {
    if ((key.allowed & Of(pattern)) != 0) names.emplace_back(key.name);
  }
  return names;
}

// " (did you mean "factor"?)", or nothing when none is near.
std::string Guess(std::string_view word, const std::vector<std::string>& names) {
  const std::string near = Nearest(word, names);
  return near.empty() ? "" : fmt::format(" (did you mean {}?)", Quoted(near));
}

struct Item {
  std::string_view key;
  std::string_view value;
};

Result<std::vector<Item>> Split(std::string_view text) {
  std::vector<Item> items;
  for (bool more = true; more;) {
    const auto comma = text.find(',');
    more = comma != std::string_view::npos;
    const std::string_view part = text.substr(0, comma);
    text.remove_prefix(more ? comma + 1 : text.size());
    const auto equals = part.find('=');
    if (equals == std::string_view::npos || equals == 0) {
      return Error{
          ErrorCode::kInvalid,
          fmt::format("slowdown {}: expected key=value,..., as worker=2,factor=4", Quoted(part))};
    }
    const Item item{part.substr(0, equals), part.substr(equals + 1)};
    if (std::ranges::find(items, item.key, &Item::key) != items.end()) {
      return Invalid(item.key, item.value, "given twice");
    }
    items.push_back(item);
  }
  return items;
}

Status TakePattern(std::string_view value, SlowdownSpec& spec) {
  if (value == "blog") value = "delay";  // the PyTorch blog's injection
  const auto found = std::ranges::find(kPatterns, value, &PatternName::name);
  if (found == kPatterns.end()) {
    std::vector<std::string> names;
    for (const PatternName& entry : kPatterns) names.emplace_back(entry.name);
    return Invalid(
        "pattern", value,
        fmt::format("unknown pattern{}; known are {}", Guess(value, names), Listed(names)));
  }
  spec.pattern = found->pattern;
  return {};
}

Status Take(const Item& item, SlowdownSpec& spec) {
  if (item.key == "pattern") return {};
  const auto known = std::ranges::find(kKeys, item.key, &Key::name);
  if (known == kKeys.end() || (known->allowed & Of(spec.pattern)) == 0) {
    const std::vector<std::string> names = KeysOf(spec.pattern);
    return Error{
        ErrorCode::kInvalid,
        fmt::format("slowdown {}: {}{}; known are {}", Quoted(item.key),
                    known == kKeys.end() ? "unknown key"
                                         : fmt::format("no key of pattern {}", Name(spec.pattern)),
                    Guess(item.key, names), Listed(names))};
  }
  if (Status taken = known->take(item.value, spec); !taken) {
    return Invalid(item.key, item.value, taken.error().message);
  }
  return {};
}

// Checks the rules between keys.
Status Check(const std::vector<Item>& items, const SlowdownSpec& spec) {
  const auto given = [&](std::string_view key) {
    return std::ranges::find(items, key, &Item::key) != items.end();
  };
  const auto wrong = [](std::string text) {
    return Error{ErrorCode::kInvalid, "slowdown: " + std::move(text)};
  };
  for (const Key& key : kKeys) {
    if ((key.required & Of(spec.pattern)) == 0 || given(key.name)) continue;
    if (spec.pattern == kConstant) return wrong("factor is missing, as worker=2,factor=4");
    return wrong(fmt::format("{} is missing; {} needs it", key.name, Name(spec.pattern)));
  }
  if (spec.pattern == kSlowWorker && !given("factor") && !given("delay"))
    return wrong("slow-worker needs factor or delay, as p=0.1,factor=2..5");
  if (spec.pattern != kSlowWorker && spec.factor_most != spec.factor)
    return wrong("a range of factors is for slow-worker only");
  if (spec.pattern == kPause && spec.spell >= spec.every)
    return wrong("length of a pause must be less than every");
  if (spec.worker && spec.workers != 0)
    return wrong("workers says out of whom it is drawn, worker that it is not; one of them");
  if (spec.pattern != kTrace) return {};
  if (given("file") == given("points")) return wrong("trace needs file or points, one of them");
  if (spec.loop && !spec.points.empty() && spec.points.back().at < kShortestSpell)
    return wrong("a trace that loops needs a last point later than its first");
  return {};
}

std::string FormatTime(Duration time) {
  return time.count() % 1'000'000'000 == 0 ? fmt::format("{}s", time.count() / 1'000'000'000)
         : time.count() % 1'000'000 == 0   ? fmt::format("{}ms", time.count() / 1'000'000)
                                           : fmt::format("{}ns", time.count());
}

std::string FormatPoints(const std::vector<TracePoint>& points) {
  std::string text;
  for (const TracePoint& point : points) {
    // In whole nanoseconds as a decimal: parsing and rounding give the same time back.
    const auto ns = point.at.count();
    std::string seconds = fmt::format("{}", ns / 1'000'000'000);
    if (ns % 1'000'000'000 != 0) {
      std::string fraction = fmt::format("{:09}", ns % 1'000'000'000);
      fraction.erase(fraction.find_last_not_of('0') + 1);
      seconds += "." + fraction;
    }
    text += fmt::format("{}{}:{}", text.empty() ? "" : ";", seconds, point.factor);
  }
  return text;
}

}  // namespace

Result<SlowdownSpec> ParseSlowdownSpec(std::string_view text) {
  const Result<std::vector<Item>> items = Split(text);
  if (!items) return items.error();
  SlowdownSpec spec;
  const auto pattern = std::ranges::find(*items, "pattern", &Item::key);
  if (pattern != items->end()) {
    if (Status taken = TakePattern(pattern->value, spec); !taken) return taken.error();
  }
  for (const Item& item : *items) {
    if (Status taken = Take(item, spec); !taken) return taken.error();
  }
  if (Status checked = Check(*items, spec); !checked) return checked.error();
  return spec;
}

Result<std::vector<SlowdownSpec>> ParseSlowdownLines(std::string_view text, SlowdownFiles files) {
  std::vector<SlowdownSpec> specs;
  while (!text.empty()) {
    const auto end = text.find('\n');
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    Result<SlowdownSpec> spec = ParseSlowdownSpec(line);
    if (!spec) return spec.error();
    if (files == SlowdownFiles::kRefused && !spec->file.empty()) {
      return Error{ErrorCode::kInvalid,
                   "slowdown file: no file is read here; write its points as points=0:1;10:4"};
    }
    if (specs.size() == kMaxSlowdownSpecs) {
      return Error{ErrorCode::kInvalid,
                   fmt::format("slowdown: more than {} at a time", kMaxSlowdownSpecs)};
    }
    specs.push_back(*std::move(spec));
  }
  return specs;
}

std::string ToString(const SlowdownSpec& spec) {
  std::string text;
  const auto add = [&](std::string_view key, const std::string& value) {
    text += fmt::format("{}{}={}", text.empty() ? "" : ",", key, value);
  };
  const auto number = [](auto value) { return fmt::format("{}", value); };
  const auto range = [&](auto least, auto most, auto&& format) {
    return least == most ? format(least) : fmt::format("{}..{}", format(least), format(most));
  };
  if (spec.pattern != kConstant) add("pattern", std::string(Name(spec.pattern)));
  if (spec.worker) add("worker", number(*spec.worker));
  switch (spec.pattern) {
    case kConstant:
      add("factor", number(spec.factor));
      break;
    case kSlowWorker:
      add("p", number(spec.probability));
      add("factor", range(spec.factor, spec.factor_most, number));
      add("delay", range(spec.delay, spec.delay_most, FormatTime));
      break;
    case kDisrupted:
      add("factor", number(spec.factor));
      add("length", FormatTime(spec.spell));
      add("gap", FormatTime(spec.gap));
      if (spec.workers != 0) add("workers", number(spec.workers));
      break;
    case kPowerLaw:
      add("alpha", number(spec.alpha));
      add("max", number(spec.most));
      break;
    case kPause:
      add("every", FormatTime(spec.every));
      add("length", FormatTime(spec.spell));
      break;
    case kDelay:
      add("p", number(spec.probability));
      add("times", number(spec.times));
      break;
    case kTrace:
      if (spec.file.empty()) {
        add("points", FormatPoints(spec.points));
      } else {
        add("file", spec.file);
      }
      if (spec.loop) add("loop", "1");
      break;
  }
  if (spec.from != Duration::zero()) add("from", FormatTime(spec.from));
  if (spec.length) add("for", FormatTime(*spec.length));
  if (spec.seed != 1) add("seed", number(spec.seed));
  return text;
}

bool AppliesTo(const SlowdownSpec& spec, WorkerId worker) {
  return !spec.worker || *spec.worker == worker;
}

bool IsWithin(const SlowdownSpec& spec, std::uint32_t workers) {
  return spec.workers <= workers && (!spec.worker || spec.worker->value < workers);
}

bool IsOver(const SlowdownSpec& spec, Duration since_start) {
  return spec.length && since_start - spec.from >= *spec.length;
}

}  // namespace lockstep
