// The last closed rounds, for who watches the job: GET /rounds.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>

#include "base/ids.h"
#include "coordinator/job/records.h"

namespace lockstep::coordinator {

// Keeps at most kMostRounds lines and kMostBytes of them (I7); the newest one in any case.
class RecentRounds {
 public:
  static constexpr std::size_t kMostRounds = 128;
  static constexpr std::size_t kMostBytes = 1u << 20;

  // `line`: of the closed round `round`, as in rounds.jsonl.
  void Note(RoundId round, std::string line);
  // A JSON array of those that are kept and later than `after`; -1: all.
  std::string Text(std::int64_t after) const;

 private:
  struct Line {
    RoundId round;
    std::string text;
  };
  std::deque<Line> lines_;  // ascending
  std::size_t bytes_ = 0;
};

}  // namespace lockstep::coordinator
