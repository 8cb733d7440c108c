// The run as a timeline in the Chrome trace format, which Perfetto and chrome://tracing open: one
// track a worker with its units, one for the rounds.
#pragma once

#include <istream>
#include <ostream>
#include <set>
#include <string_view>

#include "coordinator/record/records.h"

namespace lockstep::coordinator {

// Writes one JSON document, round by round; the destructor ends it.
class TimelineWriter {
 public:
  explicit TimelineWriter(std::ostream& out);
  ~TimelineWriter();
  TimelineWriter(const TimelineWriter&) = delete;
  TimelineWriter& operator=(const TimelineWriter&) = delete;

  void Add(const RoundRecord& record);

 private:
  void NameTrack(std::uint64_t track);
  void Write(std::string_view event);

  std::ostream& out_;
  std::set<std::uint64_t> named_;
  bool first_ = true;
};

// Reads lines of rounds.jsonl; a line that cannot be read ends the timeline there. Memory: one
// line.
void TimelineFromRounds(std::istream& rounds, std::ostream& out);

}  // namespace lockstep::coordinator
