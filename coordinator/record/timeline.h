// The run as a timeline in the Chrome trace format, for Perfetto and chrome://tracing. Each worker
// has a track with its units; the rounds have one, and so have their exchanges.
//
// The format has spans of a track nest, and Perfetto draws those that overlap otherwise wrong or
// not at all. So here they follow each other, in the order in which they are added.
#pragma once

#include <cstdint>
#include <istream>
#include <map>
#include <ostream>
#include <string>
#include <string_view>

#include "coordinator/job/records.h"

namespace lockstep::coordinator {

// The document's text piece by piece: kTimelineHead, what Add returns, kTimelineTail, which the
// next piece takes the place of.
inline constexpr std::string_view kTimelineHead = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n";
inline constexpr std::string_view kTimelineTail = "\n]}\n";

class TimelineText {
 public:
  std::string Add(const RoundRecord& record);

 private:
  class Events;
  std::map<std::uint64_t, std::int64_t> tracks_;  // that have a name: where the last span ends
  bool first_ = true;
};

// Writes one JSON document, round by round; the destructor ends it.
class TimelineWriter {
 public:
  explicit TimelineWriter(std::ostream& out);
  ~TimelineWriter();
  TimelineWriter(const TimelineWriter&) = delete;
  TimelineWriter& operator=(const TimelineWriter&) = delete;

  void Add(const RoundRecord& record);

 private:
  std::ostream& out_;
  TimelineText text_;
};

// Reads rounds.jsonl line by line; an unreadable line ends the timeline there.
void TimelineFromRounds(std::istream& rounds, std::ostream& out);

}  // namespace lockstep::coordinator
