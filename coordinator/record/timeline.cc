#include "coordinator/record/timeline.h"

#include <fmt/format.h>

#include <cmath>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>

#include "coordinator/record/write_json.h"

namespace lockstep::coordinator {
namespace {

constexpr std::uint64_t kRoundsTrack = 0;  // of thread ids; worker w has track w + 1

// The format's times are microseconds.
std::int64_t Micros(double seconds) {
  return static_cast<std::int64_t>(std::floor(seconds * 1e6 + 0.5));
}

std::string Quoted(const std::string& text) { return nlohmann::json(text).dump(); }

std::string Instant(std::string_view name, std::uint64_t track, double at) {
  return fmt::format(R"({{"name":"{}","ph":"i","s":"t","pid":1,"tid":{},"ts":{}}})", name, track,
                     Micros(at));
}

std::string Excluded(const RoundRecord& record) {
  std::string text;
  for (const WorkerId worker : record.excluded) {
    text += fmt::format("{}{}", text.empty() ? "" : ",", worker);
  }
  return text;
}

}  // namespace

TimelineWriter::TimelineWriter(std::ostream& out) : out_(out) {
  out_ << "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n";
}

TimelineWriter::~TimelineWriter() { out_ << "\n]}\n"; }

void TimelineWriter::Write(std::string_view event) {
  if (!first_) out_ << ",\n";
  out_ << event;
  first_ = false;
}

void TimelineWriter::NameTrack(std::uint64_t track) {
  if (!named_.insert(track).second) return;
  const std::string name = track == kRoundsTrack ? "rounds" : fmt::format("worker {}", track - 1);
  Write(fmt::format(R"({{"name":"thread_name","ph":"M","pid":1,"tid":{},"args":{{"name":"{}"}}}})",
                    track, name));
  Write(fmt::format(
      R"({{"name":"thread_sort_index","ph":"M","pid":1,"tid":{0},"args":{{"sort_index":{0}}}}})",
      track));
}

void TimelineWriter::Add(const RoundRecord& record) {
  const std::int64_t start = Micros(record.start);
  NameTrack(kRoundsTrack);
  Write(fmt::format(R"({{"name":"round {}","ph":"X","pid":1,"tid":{},"ts":{},"dur":{},)"
                    R"("args":{{"reason":{},"excluded":[{}],"loss":{}}}}})",
                    record.round, kRoundsTrack, start,
                    Micros(record.applied.value_or(record.commit)) - start, Quoted(record.reason),
                    Excluded(record), nlohmann::json(record.loss).dump()));
  Write(Instant("commit", kRoundsTrack, record.commit));
  fmt::memory_buffer event;
  for (const UnitRecord& unit : record.units) {
    const std::uint64_t track = std::uint64_t{unit.worker.value} + 1;
    NameTrack(track);
    event.clear();
    fmt::format_to(std::back_inserter(event),
                   R"({{"name":"{} of round {}","ph":"X","pid":1,"tid":{},"ts":{},"dur":{},)"
                   R"("args":{{"range":[{},{}]}}}})",
                   unit.units == 1 ? "unit" : "units", record.round, track, Micros(unit.start),
                   Micros(unit.end) - Micros(unit.start), unit.range.from, unit.range.to);
    Write({event.data(), event.size()});
  }
  for (const auto& [worker, at] : record.ready) {
    NameTrack(std::uint64_t{worker.value} + 1);
    Write(Instant("ready", std::uint64_t{worker.value} + 1, at));
  }
}

void TimelineFromRounds(std::istream& rounds, std::ostream& out) {
  TimelineWriter timeline(out);
  for (std::string line; std::getline(rounds, line);) {
    const auto record = RoundFromLine(line);
    if (!record) return;
    timeline.Add(*record);
  }
}

}  // namespace lockstep::coordinator
