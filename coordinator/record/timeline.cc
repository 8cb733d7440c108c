#include "coordinator/record/timeline.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>

#include "coordinator/record/write_json.h"

namespace lockstep::coordinator {
namespace {

// Thread ids: worker w has track w + 1, and kSendsTracks + w + 1 for bytes sent early. A round is
// applied while the next one is computed, so exchanges have their own track.
constexpr std::uint64_t kRoundsTrack = 0;
constexpr std::uint64_t kSendsTracks = 1'000'000;
constexpr std::uint64_t kExchangesTrack = kSendsTracks;

std::string NameOf(std::uint64_t track) {
  if (track == kRoundsTrack) return "rounds";
  if (track == kExchangesTrack) return "exchanges";
  if (track > kSendsTracks) return fmt::format("worker {} sends", track - kSendsTracks - 1);
  return fmt::format("worker {}", track - 1);
}

// A worker's tracks stand together: bytes sent after units; and exchanges come after rounds.
std::uint64_t PlaceOf(std::uint64_t track) {
  return track < kSendsTracks ? 2 * track : 2 * (track - kSendsTracks) + 1;
}

// The format's times are microseconds.
std::int64_t Micros(double seconds) {
  return static_cast<std::int64_t>(std::floor(seconds * 1e6 + 0.5));
}

std::string Quoted(const std::string& text) { return nlohmann::json(text).dump(); }

}  // namespace

// A round of 256 workers has five hundred events and more, and the coordinator has other things to
// do: text is appended, not formatted.
class TimelineText::Events {
 public:
  explicit Events(TimelineText& text) : text_(text) {}

  // "{"name":NAME of R","ph":"PHASE","pid":1,"tid":TRACK"; `round` is nobody's where there is none.
  void Begin(std::string_view name, const RoundId* round, char phase, std::uint64_t track) {
    Raw(text_.first_ ? "{\"name\":\"" : ",\n{\"name\":\"");
    text_.first_ = false;
    Raw(name);
    if (round != nullptr) Number(round->value);
    Raw("\",\"ph\":\"");
    out_.push_back(phase);
    Raw("\",\"pid\":1,\"tid\":");
    Number(track);
  }
  void Raw(std::string_view text) { out_.append(text); }
  template <class Integer>
  void Number(Integer value) {
    const fmt::format_int digits(value);
    out_.append(digits.data(), digits.data() + digits.size());
  }
  // A span that would begin before the end of the last one on its track begins there. The estimate
  // of a worker's clock changes between rounds, so two spans may seem to overlap.
  void Span(std::uint64_t track, double from, double to) {
    std::int64_t& last = text_.tracks_.at(track);
    const std::int64_t start = std::max(Micros(from), last);
    const std::int64_t end = std::max(Micros(to), start);
    last = end;
    Raw(",\"ts\":");
    Number(start);
    Raw(",\"dur\":");
    Number(end - start);
  }
  void Instant(std::string_view name, std::uint64_t track, double at) {
    Begin(name, nullptr, 'i', track);
    Raw(",\"s\":\"t\",\"ts\":");
    Number(Micros(at));
    Raw("}");
  }
  void NameTrack(std::uint64_t track) {
    if (!text_.tracks_.emplace(track, 0).second) return;
    Begin("thread_name", nullptr, 'M', track);
    Raw(fmt::format(",\"args\":{{\"name\":\"{}\"}}}}", NameOf(track)));
    Begin("thread_sort_index", nullptr, 'M', track);
    Raw(fmt::format(",\"args\":{{\"sort_index\":{}}}}}", PlaceOf(track)));
  }
  void Round(const RoundRecord& record) {
    NameTrack(kRoundsTrack);
    Begin("round ", &record.round, 'X', kRoundsTrack);
    Span(kRoundsTrack, record.start, record.commit);
    Raw(",\"args\":{\"reason\":");
    Raw(Quoted(record.reason));
    Raw(",\"excluded\":[");
    const char* before = "";
    for (const WorkerId worker : record.excluded) {
      Raw(before);
      Number(worker.value);
      before = ",";
    }
    Raw("],\"loss\":");
    Raw(nlohmann::json(record.loss).dump());
    Raw("}}");
    Instant("commit", kRoundsTrack, record.commit);
    if (!record.applied) return;
    NameTrack(kExchangesTrack);
    Begin("exchange of round ", &record.round, 'X', kExchangesTrack);
    Span(kExchangesTrack, record.commit, *record.applied);
    Raw("}");
  }
  void Unit(RoundId round, const UnitRecord& unit) {
    const std::uint64_t track = std::uint64_t{unit.worker.value} + 1;
    NameTrack(track);
    Begin(unit.units == 1 ? "unit of round " : "units of round ", &round, 'X', track);
    Span(track, unit.start, unit.end);
    Raw(",\"args\":{\"range\":[");
    Number(unit.range.from);
    Raw(",");
    Number(unit.range.to);
    Raw("]}}");
  }
  // Draws the bytes that a worker sends early: from the first byte until all owners have all.
  void Sends(RoundId round, WorkerId worker, double from, double to) {
    const std::uint64_t track = kSendsTracks + worker.value + 1;
    NameTrack(track);
    Begin("contribution to round ", &round, 'X', track);
    Span(track, from, to);
    Raw("}");
  }
  std::string Take() { return fmt::to_string(out_); }

 private:
  TimelineText& text_;
  fmt::memory_buffer out_;
};

std::string TimelineText::Add(const RoundRecord& record) {
  Events events(*this);
  events.Round(record);
  for (const UnitRecord& unit : record.units) events.Unit(record.round, unit);
  for (const auto& [worker, from] : record.sending) {
    const auto to = record.delivered.find(worker);
    if (to != record.delivered.end()) events.Sends(record.round, worker, from, to->second);
  }
  for (const auto& [worker, at] : record.ready) {
    events.NameTrack(std::uint64_t{worker.value} + 1);
    events.Instant("ready", std::uint64_t{worker.value} + 1, at);
  }
  return events.Take();
}

TimelineWriter::TimelineWriter(std::ostream& out) : out_(out) { out_ << kTimelineHead; }

TimelineWriter::~TimelineWriter() { out_ << kTimelineTail; }

void TimelineWriter::Add(const RoundRecord& record) { out_ << text_.Add(record); }

void TimelineFromRounds(std::istream& rounds, std::ostream& out) {
  TimelineWriter timeline(out);
  for (std::string line; std::getline(rounds, line);) {
    const auto record = RoundFromLine(line);
    if (!record) return;
    timeline.Add(*record);
  }
}

}  // namespace lockstep::coordinator
