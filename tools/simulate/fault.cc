#include "tools/simulate/fault.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "base/options.h"

namespace lockstep::simulate {
namespace {

struct KindName {
  FaultKind kind;
  std::string_view name;
  bool machine;  // concerns one machine
  bool other;    // and a second one
  bool length;
};

constexpr std::array kKinds = {
    KindName{FaultKind::kCrash, "crash", true, false, false},
    KindName{FaultKind::kLoseControl, "lose-control", true, false, true},
    KindName{FaultKind::kStop, "stop", true, false, true},
    KindName{FaultKind::kCutLink, "cut-link", true, true, false},
    KindName{FaultKind::kPartition, "partition", true, true, true},
    KindName{FaultKind::kDelay, "delay", true, true, true},
    KindName{FaultKind::kStopCoordinator, "stop-coordinator", false, false, true},
    KindName{FaultKind::kControlOut, "control-out", true, false, true},
    KindName{FaultKind::kControlIn, "control-in", true, false, true},
    KindName{FaultKind::kSlowControl, "slow-control", true, false, true},
    KindName{FaultKind::kOneWay, "one-way", true, true, true},
    KindName{FaultKind::kHangReduction, "hang-reduction", true, false, true},
    KindName{FaultKind::kHangCompute, "hang-compute", true, false, true},
    KindName{FaultKind::kFastClock, "fast-clock", true, false, true},
    KindName{FaultKind::kSlowClock, "slow-clock", true, false, true},
    KindName{FaultKind::kFailCheckpoint, "fail-checkpoint", false, false, true},
    KindName{FaultKind::kFullDisk, "full-disk", false, false, true},
    KindName{FaultKind::kAway, "away", true, false, true},
    KindName{FaultKind::kDieUnseen, "die-unseen", true, false, true},
    KindName{FaultKind::kResume, "resume", false, false, true},
    KindName{FaultKind::kCrashCoordinator, "crash-coordinator", false, false, true},
    KindName{FaultKind::kTearJournal, "tear-journal", false, false, true},
    KindName{FaultKind::kTearRecords, "tear-records", false, false, true},
    KindName{FaultKind::kFlipJournal, "flip-journal", false, false, true},
    KindName{FaultKind::kFlipRecords, "flip-records", false, false, true},
    KindName{FaultKind::kFlipCheckpoint, "flip-checkpoint", false, false, true},
    KindName{FaultKind::kFlip, "flip", true, false, false},
};

const KindName& Of(FaultKind kind) { return kKinds[static_cast<std::size_t>(kind)]; }

Result<Duration> ParseTime(std::string_view text) {
  auto seconds = ParseDurationSeconds(text);
  if (!seconds) return seconds.error();
  // Times are whole microseconds, which a double of seconds holds.
  return Duration(std::chrono::microseconds(std::llround(*seconds * 1e6)));
}

// Parses "Commit_26#2+0.5s", with or without the count and the delay.
bool ParseMoment(std::string_view text, Fault* fault) {
  Moment moment;
  if (const std::size_t plus = text.find('+'); plus != std::string_view::npos) {
    auto delay = ParseTime(text.substr(plus + 1));
    if (!delay) return false;
    fault->at = *delay;
    text = text.substr(0, plus);
  }
  if (const std::size_t hash = text.find('#'); hash != std::string_view::npos) {
    auto count = Count(1, 1'000'000).parse(text.substr(hash + 1));
    if (!count) return false;
    moment.count = *count;
    text = text.substr(0, hash);
  }
  if (text.empty() || text.back() == '_') return false;
  moment.words = text;
  std::ranges::replace(moment.words, '_', ' ');
  fault->moment = std::move(moment);
  return true;
}

bool IsLetter(char c) { return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z'); }

}  // namespace

bool ConcernsFiles(FaultKind kind) {
  return kind >= FaultKind::kTearJournal && kind <= FaultKind::kFlipCheckpoint;
}

bool IsTakeover(FaultKind kind) {
  return kind == FaultKind::kCrashCoordinator || ConcernsFiles(kind);
}

bool Moment::Matches(std::string_view said) const {
  if (!said.starts_with(words)) return false;
  if (said.size() == words.size()) return true;
  const char next = said[words.size()];
  return !IsLetter(next) && (next < '0' || next > '9');
}

std::string ToString(const Fault& fault) {
  const KindName& kind = Of(fault.kind);
  std::string text = fmt::format("{}@", kind.name);
  if (fault.moment) {
    std::string words = fault.moment->words;
    std::ranges::replace(words, ' ', '_');
    text += words;
    if (fault.moment->count > 1) text += fmt::format("#{}", fault.moment->count);
  }
  if (fault.moment && fault.at > Duration{}) text += "+";
  if (!fault.moment || fault.at > Duration{}) text += fmt::format("{:.6f}s", Seconds(fault.at));
  if (kind.machine) text += fmt::format(":{}", fault.machine);
  if (kind.other) text += fmt::format("-{}", fault.other);
  if (kind.length) text += fmt::format(",for={:.6f}s", Seconds(fault.length));
  return text;
}

Result<Fault> ParseFault(std::string_view text) {
  const Error wrong{ErrorCode::kInvalid,
                    fmt::format("'{}' is no fault; they look like stop@1.25s:3,for=0.2s or "
                                "crash@Commit_26#2+0.01s:3",
                                text)};
  const std::size_t at = text.find('@');
  if (at == std::string_view::npos) return wrong;
  for (const KindName& kind : kKinds) {
    if (text.substr(0, at) != kind.name) continue;
    Fault fault;
    fault.kind = kind.kind;
    std::string_view rest = text.substr(at + 1);
    if (const std::size_t comma = rest.find(",for="); comma != std::string_view::npos) {
      auto length = ParseTime(rest.substr(comma + 5));
      if (!length || !kind.length) return wrong;
      fault.length = *length;
      rest = rest.substr(0, comma);
    } else if (kind.length) {
      return wrong;
    }
    if (kind.machine) {
      const std::size_t colon = rest.find(':');
      if (colon == std::string_view::npos) return wrong;
      std::string_view machines = rest.substr(colon + 1);
      rest = rest.substr(0, colon);
      const std::size_t dash = machines.find('-');
      if ((dash != std::string_view::npos) != kind.other) return wrong;
      const auto number = Count(0, 4095).parse;
      auto machine = number(machines.substr(0, dash));
      if (!machine) return wrong;
      fault.machine = *machine;
      if (kind.other) {
        auto other = number(machines.substr(dash + 1));
        if (!other || *other == *machine) return wrong;
        fault.other = *other;
      }
    }
    if (!rest.empty() && IsLetter(rest.front())) {
      if (!ParseMoment(rest, &fault)) return wrong;
      return fault;
    }
    auto time = ParseTime(rest);
    if (!time) return wrong;
    fault.at = *time;
    return fault;
  }
  return wrong;
}

std::vector<Fault> DrawFaults(const FaultMix& mix, std::uint32_t machines, RandomStream& random) {
  std::vector<FaultKind> kinds;
  const auto add = [&kinds](FaultKind kind, int weight) {
    kinds.insert(kinds.end(), weight, kind);
  };
  if (mix.crashes) add(FaultKind::kCrash, 3), add(FaultKind::kLoseControl, 1);
  if (mix.stops) add(FaultKind::kStop, 6);
  if (mix.links && machines > 1) {
    add(FaultKind::kCutLink, 1), add(FaultKind::kPartition, 2), add(FaultKind::kDelay, 2);
  }
  if (mix.coordinator) add(FaultKind::kStopCoordinator, 1);
  if (mix.control_links) {
    add(FaultKind::kControlOut, 2), add(FaultKind::kControlIn, 2), add(FaultKind::kSlowControl, 2);
  }
  if (mix.one_way && machines > 1) add(FaultKind::kOneWay, 3);
  if (mix.hangs) add(FaultKind::kHangReduction, 2), add(FaultKind::kHangCompute, 1);
  if (mix.clocks) add(FaultKind::kFastClock, 1), add(FaultKind::kSlowClock, 1);
  if (mix.disk) add(FaultKind::kFailCheckpoint, 3), add(FaultKind::kFullDisk, 1);
  if (mix.resume) add(FaultKind::kResume, 1);
  if (mix.takeovers) add(FaultKind::kCrashCoordinator, 1);
  if (mix.files) {
    add(FaultKind::kTearJournal, 4), add(FaultKind::kTearRecords, 2);
    add(FaultKind::kFlipJournal, 2), add(FaultKind::kFlipRecords, 1);
    add(FaultKind::kFlipCheckpoint, 1);
  }
  if (mix.absences) add(FaultKind::kAway, 1);
  if (mix.stalls) add(FaultKind::kHangCompute, 4), add(FaultKind::kDieUnseen, 2);
  std::vector<Fault> faults;
  if (machines == 0) return faults;
  const auto micros = [&random](std::uint64_t below) {
    return Duration(std::chrono::microseconds(random.NextBelow(below)));
  };
  const auto pause = static_cast<std::uint64_t>(2 * mix.mean_pause.count() / 1000);
  Duration at{};
  while (!kinds.empty()) {
    at += micros(pause + 1);
    if (at > mix.until) break;
    Fault fault;
    fault.at = at;
    fault.kind = kinds[random.NextBelow(kinds.size())];
    const KindName& kind = Of(fault.kind);
    if (kind.machine) fault.machine = static_cast<std::uint32_t>(random.NextBelow(machines));
    if (kind.other) {
      fault.other = static_cast<std::uint32_t>(random.NextBelow(machines - 1));
      if (fault.other >= fault.machine) ++fault.other;
    }
    // Most faults are short, some are longer than every time-out.
    const bool is_long = random.NextBelow(4) == 0;
    if (kind.length) fault.length = micros(is_long ? 5'000'000 : 300'000);
    if (fault.kind == FaultKind::kDelay || fault.kind == FaultKind::kSlowControl) {
      fault.length = micros(is_long ? 1'000'000 : 20'000);
    }
    // It lasts until the worker is evicted.
    if (mix.stalls && fault.kind == FaultKind::kHangCompute && random.NextBelow(4) == 0) {
      fault.length = kEndless;
    }
    if (fault.kind == FaultKind::kFastClock || fault.kind == FaultKind::kSlowClock) {
      fault.length = micros(is_long ? 50'000 : 500);
    }
    faults.push_back(fault);
  }
  if (mix.endless && machines > 1) {
    const std::array lasting = {FaultKind::kPartition, FaultKind::kOneWay};
    Fault fault;
    fault.at = micros(static_cast<std::uint64_t>(mix.until.count() / 1000) + 1);
    fault.kind = lasting[random.NextBelow(lasting.size())];
    fault.machine = static_cast<std::uint32_t>(random.NextBelow(machines));
    fault.other = static_cast<std::uint32_t>(random.NextBelow(machines - 1));
    if (fault.other >= fault.machine) ++fault.other;
    if (!Of(fault.kind).other) fault.other = 0;
    fault.length = kEndless;
    faults.push_back(fault);
    std::ranges::stable_sort(faults, {}, &Fault::at);
  }
  return faults;
}

}  // namespace lockstep::simulate
