#include "tools/simulate/unit_costs.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>
#include <utility>

#include "base/check.h"
#include "base/regular_file.h"

namespace lockstep::simulate {
namespace {

constexpr std::size_t kMostBytes = std::size_t{64} << 20;
constexpr std::string_view kHeader = "round,unit,seconds";
constexpr std::uint32_t kMostRounds = 1'000'000;
constexpr std::uint32_t kMostUnits = 65536;  // as job.units
constexpr double kMostSeconds = 3600;        // as --unit-time

struct Row {
  std::uint32_t round = 0;
  std::uint32_t unit = 0;
  double seconds = 0;
};

template <class Number>
std::optional<Number> NumberOf(std::string_view text) {
  Number number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

// Takes the text up to the next of these characters, and that one, from the front.
std::string_view Take(std::string_view* text, char until) {
  const std::size_t at = text->find(until);
  const std::string_view taken = text->substr(0, at);
  text->remove_prefix(at == std::string_view::npos ? text->size() : at + 1);
  return taken;
}

Result<Row> RowOf(std::string_view line) {
  const auto wrong = [](std::string what) { return Error{ErrorCode::kInvalid, std::move(what)}; };
  const auto round = NumberOf<std::uint32_t>(Take(&line, ','));
  const auto unit = NumberOf<std::uint32_t>(Take(&line, ','));
  const auto seconds = NumberOf<double>(line);
  if (!round || *round >= kMostRounds) {
    return wrong(fmt::format("the round is no number from 0 to {}", kMostRounds - 1));
  }
  if (!unit || *unit >= kMostUnits) {
    return wrong(fmt::format("the unit is no number from 0 to {}", kMostUnits - 1));
  }
  if (!seconds || !(*seconds >= 0 && *seconds <= kMostSeconds)) {
    return wrong(fmt::format("the seconds are no number from 0 to {}", kMostSeconds));
  }
  return Row{*round, *unit, *seconds};
}

}  // namespace

Result<CostTable> ReadCostTable(const std::string& path) {
  auto text = ReadRegularFile(path, kMostBytes);
  if (!text) return text.error();
  return ParseCostTable(*text, path);
}

Result<CostTable> ParseCostTable(std::string_view text, const std::string& name) {
  std::size_t number = 0;
  const auto next_line = [&] {
    ++number;
    std::string_view line = Take(&text, '\n');
    if (line.ends_with('\r')) line.remove_suffix(1);
    return line;
  };
  const auto wrong = [&name](const std::string& what) {
    return Error{ErrorCode::kInvalid, fmt::format("{}{}", name, what)};
  };
  if (next_line() != kHeader) return wrong(fmt::format(":1: expected '{}'", kHeader));
  std::vector<Row> rows;
  CostTable table;
  while (!text.empty()) {
    auto row = RowOf(next_line());
    if (!row) return wrong(fmt::format(":{}: {}", number, row.error().message));
    table.rounds = std::max(table.rounds, row->round + 1);
    table.units = std::max(table.units, row->unit + 1);
    rows.push_back(*row);
  }
  if (rows.empty()) return wrong(": has no units");
  std::ranges::stable_sort(rows, {}, [](const Row& row) { return std::pair(row.round, row.unit); });
  // Nothing is allocated for rows that are not there.
  for (const Row& row : rows) {
    const std::uint64_t place = table.seconds.size();
    const auto round = static_cast<std::uint32_t>(place / table.units);
    const auto unit = static_cast<std::uint32_t>(place % table.units);
    if (std::pair(row.round, row.unit) < std::pair(round, unit)) {
      return wrong(fmt::format(": round {} has unit {} twice", row.round, row.unit));
    }
    if (row.round != round || row.unit != unit) {
      return wrong(fmt::format(": round {} has no unit {}", round, unit));
    }
    table.seconds.push_back(row.seconds);
  }
  if (const std::uint64_t there = table.seconds.size() % table.units; there != 0) {
    return wrong(fmt::format(": round {} has no unit {}", table.rounds - 1, there));
  }
  return table;
}

// As the sampler cuts (coordinator/round/sampler.cc).
std::uint32_t UnitsOfRound(std::uint64_t samples, std::uint32_t wanted) {
  const std::uint64_t largest = (samples + wanted - 1) / wanted;
  return static_cast<std::uint32_t>((samples + largest - 1) / largest);
}

UnitCosts::UnitCosts(CostTable table, std::uint64_t round_samples, std::uint64_t epoch_samples)
    : table_(std::move(table)), round_samples_(round_samples), epoch_samples_(epoch_samples) {
  LOCKSTEP_CHECK(UnitsOfRound(round_samples, table_.units) == table_.units,
                 "the costs are of {} units a round of {} samples", table_.units, round_samples);
}

double UnitCosts::SecondsOf(Epoch epoch, const SampleRange& range) const {
  const std::uint64_t epoch_rounds = (epoch_samples_ + round_samples_ - 1) / round_samples_;
  const std::uint64_t largest = (round_samples_ + table_.units - 1) / table_.units;
  double seconds = 0;
  for (std::uint64_t at = range.from; at < range.to;) {
    const std::uint64_t round = at / round_samples_;
    const std::uint64_t begin = round * round_samples_;
    // An epoch's last round may have fewer samples, and units.
    const std::uint64_t samples = std::min(round_samples_, epoch_samples_ - begin);
    const std::uint64_t units = (samples + largest - 1) / largest;
    // Unit u has the samples from samples * u / units on: that is the last one that begins by then.
    const std::uint64_t unit = ((at - begin + 1) * units - 1) / samples;
    const std::uint64_t from = begin + samples * unit / units;
    const std::uint64_t to = begin + samples * (unit + 1) / units;
    LOCKSTEP_CHECK(from <= at && at < to, "position {} is not in [{}, {})", at, from, to);
    const std::uint64_t end = std::min(to, range.to);
    const std::uint64_t row = (epoch.value * epoch_rounds + round) % table_.rounds;
    seconds += table_.seconds[row * table_.units + unit] * static_cast<double>(end - at) /
               static_cast<double>(to - from);
    at = end;
  }
  return seconds;
}

}  // namespace lockstep::simulate
