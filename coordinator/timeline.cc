#include "coordinator/timeline.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <set>
#include <string>

namespace lockstep::coordinator {
namespace {

using Json = nlohmann::json;

constexpr int kRoundsTrack = 0;  // of thread ids; worker w has track w + 1

class TraceWriter {
 public:
  explicit TraceWriter(std::ostream& out) : out_(out) {
    out_ << "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n";
  }
  ~TraceWriter() { out_ << "\n]}\n"; }

  void Span(const std::string& name, std::uint64_t track, double start, double end,
            const Json& details) {
    NameTrack(track);
    Write({{"name", name},
           {"ph", "X"},
           {"pid", 1},
           {"tid", track},
           {"ts", start * 1e6},
           {"dur", (end - start) * 1e6},
           {"args", details}});
  }
  void Instant(const std::string& name, std::uint64_t track, double at) {
    NameTrack(track);
    Write({{"name", name}, {"ph", "i"}, {"s", "t"}, {"pid", 1}, {"tid", track}, {"ts", at * 1e6}});
  }

 private:
  void NameTrack(std::uint64_t track) {
    if (!named_.insert(track).second) return;
    const std::string name = track == kRoundsTrack ? "rounds" : fmt::format("worker {}", track - 1);
    Write({{"name", "thread_name"},
           {"ph", "M"},
           {"pid", 1},
           {"tid", track},
           {"args", {{"name", name}}}});
    Write({{"name", "thread_sort_index"},
           {"ph", "M"},
           {"pid", 1},
           {"tid", track},
           {"args", {{"sort_index", track}}}});
  }
  void Write(const Json& event) {
    out_ << (first_ ? "" : ",\n") << event.dump();
    first_ = false;
  }

  std::ostream& out_;
  std::set<std::uint64_t> named_;
  bool first_ = true;
};

void WriteRound(const Json& round, TraceWriter& trace) {
  const Json& times = round.at("times");
  const std::uint64_t number = round.at("round").get<std::uint64_t>();
  const double commit = times.at("commit").get<double>();
  const double end = times.at("applied").is_number() ? times.at("applied").get<double>() : commit;
  trace.Span(fmt::format("round {}", number), kRoundsTrack, times.at("start").get<double>(), end,
             {{"reason", round.at("reason")},
              {"excluded", round.at("excluded")},
              {"loss", round.at("loss")}});
  trace.Instant("commit", kRoundsTrack, commit);
  for (const Json& unit : round.at("units")) {
    trace.Span(fmt::format("unit of round {}", number), unit.at("worker").get<std::uint64_t>() + 1,
               unit.at("start").get<double>(), unit.at("end").get<double>(),
               {{"range", unit.at("range")}});
  }
  for (const auto& [worker, at] : times.at("ready").items()) {
    trace.Instant("ready", std::stoull(worker) + 1, at.get<double>());
  }
}

}  // namespace

void TimelineFromRounds(std::istream& rounds, std::ostream& out) {
  TraceWriter trace(out);
  for (std::string line; std::getline(rounds, line);) {
    const Json round = Json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!round.is_object()) return;
    WriteRound(round, trace);
  }
}

}  // namespace lockstep::coordinator
