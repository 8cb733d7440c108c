// Lines of rounds.jsonl back into records.
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/job_options.h"
#include "base/routes.h"
#include "coordinator/record/json_numbers.h"
#include "coordinator/record/write_json.h"

namespace lockstep::coordinator {
namespace {

using Json = nlohmann::json;

// No job exceeds these limits; within them no arithmetic of a reader overflows.
constexpr std::uint64_t kMaxPosition = std::uint64_t{1} << 40;
constexpr double kMaxSeconds = 1e9;
constexpr std::uint64_t kMostUnits = 65536;

SampleRange RangeOf(const Json& json) {
  if (!json.is_array() || json.size() != 2) throw JsonRangeError("a range is not [from, to]");
  const SampleRange range{CountFrom<std::uint64_t>(json[0], "a range's start", kMaxPosition),
                          CountFrom<std::uint64_t>(json[1], "a range's end", kMaxPosition)};
  if (range.from >= range.to) {
    throw JsonRangeError(fmt::format("the range {} ends before it begins", json.dump()));
  }
  return range;
}

std::vector<SampleRange> RangesOf(const Json& json) {
  std::vector<SampleRange> ranges;
  for (const Json& range : json) ranges.push_back(RangeOf(range));
  return ranges;
}

WorkerId WorkerOf(const Json& json) {
  return WorkerId(CountFrom<std::uint32_t>(json, "a worker", kMaxWorkers - 1));
}

// 1 where it is not said.
std::uint64_t UnitsOf(const Json& json, const char* key) {
  if (!json.contains(key)) return 1;
  const auto units = CountFrom<std::uint64_t>(json.at(key), "a number of units", kMostUnits);
  if (units == 0) throw JsonRangeError("an entry is of no unit");
  return units;
}

double TimeOf(const Json& json) { return NumberFrom<double>(json, "a time", kMaxSeconds); }

std::map<WorkerId, double> TimesByWorker(const Json& json) {
  std::map<WorkerId, double> times;
  for (const auto& [key, time] : json.items()) {
    std::uint32_t worker = 0;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), worker);
    if (error != std::errc() || end != key.data() + key.size() || worker >= kMaxWorkers) {
      throw JsonRangeError("a time is of no worker");
    }
    times[WorkerId(worker)] = TimeOf(time);
  }
  return times;
}

void ReadWork(const Json& line, RoundRecord* record) {
  for (const Json& c : line.at("contributors")) {
    record->contributors.push_back(
        {WorkerOf(c.at("worker")), PartIndex(CountFrom<std::uint8_t>(c.at("part"), "a part")),
         NumberFrom<float>(c.at("weight"), "a weight"),
         CountFrom<std::uint64_t>(c.at("samples"), "a contribution's samples", kMaxPosition),
         RangesOf(c.at("ranges")),
         c.contains("staleness")
             ? std::optional(CountFrom<std::uint64_t>(c.at("staleness"), "a staleness"))
             : std::nullopt});
  }
  for (const Json& unit : line.at("units")) {
    record->units.push_back({WorkerOf(unit.at("worker")), RangeOf(unit.at("range")),
                             TimeOf(unit.at("start")), TimeOf(unit.at("end")),
                             UnitsOf(unit, "units"), UnitsOf(unit, "run")});
    const UnitRecord& read = record->units.back();
    if (read.units > read.run || read.units > read.range.size()) {
      throw JsonRangeError(fmt::format("{} units of a run of {} have {} samples", read.units,
                                       read.run, read.range.size()));
    }
  }
  for (const Json& worker : line.at("excluded")) record->excluded.push_back(WorkerOf(worker));
  for (const Json& worker : line.value("carried", Json::array())) {
    record->carried.push_back(WorkerOf(worker));
  }
  for (const Json& move : line.at("moved")) {
    record->moved.push_back(
        {WorkerOf(move.at("from")), WorkerOf(move.at("to")), RangeOf(move.at("range"))});
  }
  record->dropped = RangesOf(line.at("dropped"));
  for (const Json& skipped : line.value("skipped", Json::array())) {
    record->skipped.push_back({WorkerOf(skipped.at("worker")), RangesOf(skipped.at("ranges"))});
  }
  record->requeued = RangesOf(line.at("requeued"));
}

// The line has only the value of a mean.
std::vector<Metric> MetricsOf(const Json& metrics) {
  std::vector<Metric> read;
  for (const auto& [name, values] : metrics.items()) {
    for (std::uint32_t i = 0; i < kReductions; ++i) {
      const auto reduction = static_cast<Reduction>(i);
      const auto value = values.find(Name(reduction));
      if (value == values.end()) continue;
      read.push_back({name, reduction, value->is_number() ? value->get<double>() : std::nan(""),
                      reduction == Reduction::kMean ? 1u : 0u});
    }
  }
  return read;
}

RoundRecord Read(const Json& line) {
  RoundRecord record;
  record.round = RoundId(CountFrom<std::uint64_t>(line.at("round"), "the round"));
  record.epoch = Epoch(CountFrom<std::uint32_t>(line.at("epoch"), "the epoch"));
  if (const auto update = line.find("update"); update != line.end()) {
    record.update = CountFrom<std::uint64_t>(*update, "the update");
  }
  for (const Json& attempt : line.at("attempts")) {
    record.attempts.push_back({Attempt(CountFrom<std::uint32_t>(attempt.at("attempt"), "attempt")),
                               attempt.at("reason").get<std::string>()});
  }
  if (const auto algorithm = line.find("algorithm"); algorithm != line.end()) {
    for (const auto known : {ExchangeAlgorithm::kRing, ExchangeAlgorithm::kTree}) {
      if (*algorithm == AlgorithmName(known)) record.algorithm = known;
    }
  }
  record.policy = line.at("policy").get<std::string>();
  record.reason = line.at("reason").get<std::string>();
  ReadWork(line, &record);
  // A missing or non-finite loss is written as null.
  record.loss = line.at("loss").is_number() ? line.at("loss").get<double>() : std::nan("");
  if (const auto metrics = line.find("metrics"); metrics != line.end()) {
    record.metrics = MetricsOf(*metrics);
  }
  record.samples =
      CountFrom<std::uint64_t>(line.at("samples"), "the number of samples", kMaxPosition);
  if (const auto divisor = line.find("divisor"); divisor != line.end()) {
    record.divisor = CountFrom<std::uint64_t>(*divisor, "the divisor");
  }
  record.learning_rate = NumberFrom<float>(line.at("learning_rate"), "the learning rate");
  if (const auto sent = line.find("sent"); sent != line.end()) {
    record.sent.bytes = CountFrom<std::uint64_t>(sent->at("bytes"), "the bytes sent");
    record.sent.early_bytes =
        CountFrom<std::uint64_t>(sent->at("early_bytes"), "the bytes sent early");
  }
  record.input_wait = TimesByWorker(line.value("input_wait", Json::object()));
  const Json& times = line.at("times");
  record.start = TimeOf(times.at("start"));
  record.sending = TimesByWorker(times.value("sending", Json::object()));
  record.ready = TimesByWorker(times.at("ready"));
  record.delivered = TimesByWorker(times.at("delivered"));
  record.commit = TimeOf(times.at("commit"));
  if (times.at("applied").is_number()) record.applied = TimeOf(times.at("applied"));
  if (const auto digest = line.find("digest"); digest != line.end()) {
    DigestRecord& read = record.digest.emplace();
    read.slice = CountFrom<std::uint32_t>(digest->at("slice"), "the digest's slice");
    const auto text = digest->at("value").get<std::string>();
    const auto [end, error] =
        std::from_chars(text.data(), text.data() + text.size(), read.value, 16);
    if (error != std::errc() || end != text.data() + text.size()) {
      throw JsonRangeError("the digest is not 16 hexadecimal digits");
    }
    read.agreeing = CountFrom<std::uint32_t>(digest->at("agreeing"), "the digest's members");
  }
  return record;
}

}  // namespace

Result<RoundRecord> RoundFromLine(std::string_view line) {
  const auto invalid = [](std::string_view why) {
    return Error{ErrorCode::kInvalid, fmt::format("not a record of a round: {}", why)};
  };
  const Json json = Json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return invalid("not a JSON object");
  try {
    return Read(json);
  } catch (const Json::exception& error) {
    return invalid(error.what());
  } catch (const JsonRangeError& error) {
    return invalid(error.what());
  }
}

}  // namespace lockstep::coordinator
