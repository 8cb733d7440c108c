// Lines of rounds.jsonl back into records.
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "coordinator/record_json.h"

namespace lockstep::coordinator {
namespace {

using Json = nlohmann::json;

SampleRange RangeOf(const Json& json) {
  return {json.at(0).get<std::uint64_t>(), json.at(1).get<std::uint64_t>()};
}

std::vector<SampleRange> RangesOf(const Json& json) {
  std::vector<SampleRange> ranges;
  for (const Json& range : json) ranges.push_back(RangeOf(range));
  return ranges;
}

WorkerId WorkerOf(const Json& json) { return WorkerId(json.get<std::uint32_t>()); }

std::map<WorkerId, double> TimesByWorker(const Json& json) {
  std::map<WorkerId, double> times;
  for (const auto& [worker, time] : json.items()) {
    times[WorkerId(static_cast<std::uint32_t>(std::strtoul(worker.c_str(), nullptr, 10)))] =
        time.get<double>();
  }
  return times;
}

void ReadWork(const Json& line, RoundRecord* record) {
  for (const Json& c : line.at("contributors")) {
    record->contributors.push_back(
        {WorkerOf(c.at("worker")), PartIndex(c.at("part").get<std::uint8_t>()),
         c.at("weight").get<float>(), c.at("samples").get<std::uint64_t>(),
         RangesOf(c.at("ranges")),
         c.contains("staleness") ? std::optional(c.at("staleness").get<std::uint64_t>())
                                 : std::nullopt});
  }
  for (const Json& unit : line.at("units")) {
    record->units.push_back({WorkerOf(unit.at("worker")), RangeOf(unit.at("range")),
                             unit.at("start").get<double>(), unit.at("end").get<double>()});
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
  record->requeued = RangesOf(line.at("requeued"));
}

RoundRecord Read(const Json& line) {
  RoundRecord record;
  record.round = RoundId(line.at("round").get<std::uint64_t>());
  record.epoch = Epoch(line.at("epoch").get<std::uint32_t>());
  for (const Json& attempt : line.at("attempts")) {
    record.attempts.push_back({Attempt(attempt.at("attempt").get<std::uint32_t>()),
                               attempt.at("reason").get<std::string>()});
  }
  record.policy = line.at("policy").get<std::string>();
  record.reason = line.at("reason").get<std::string>();
  ReadWork(line, &record);
  record.loss = line.at("loss").is_number() ? line.at("loss").get<double>() : 0;
  record.samples = line.at("samples").get<std::uint64_t>();
  record.learning_rate = line.at("learning_rate").get<float>();
  const Json& times = line.at("times");
  record.start = times.at("start").get<double>();
  record.ready = TimesByWorker(times.at("ready"));
  record.delivered = TimesByWorker(times.at("delivered"));
  record.commit = times.at("commit").get<double>();
  if (times.at("applied").is_number()) record.applied = times.at("applied").get<double>();
  if (const auto digest = line.find("digest"); digest != line.end()) {
    record.digest =
        DigestRecord{digest->at("slice").get<std::uint32_t>(),
                     std::strtoull(digest->at("value").get<std::string>().c_str(), nullptr, 16),
                     digest->at("agreeing").get<std::uint32_t>()};
  }
  return record;
}

}  // namespace

Result<RoundRecord> RoundFromLine(std::string_view line) {
  const Json json = Json::parse(line, nullptr, /*allow_exceptions=*/false);
  try {
    return Read(json);
  } catch (const Json::exception& error) {
    return Error{ErrorCode::kInvalid, std::string("not a line of rounds.jsonl: ") + error.what()};
  }
}

}  // namespace lockstep::coordinator
