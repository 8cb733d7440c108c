#include "coordinator/record/recent_rounds.h"

#include <utility>

namespace lockstep::coordinator {

void RecentRounds::Note(RoundId round, std::string line) {
  bytes_ += line.size();
  lines_.push_back({round, std::move(line)});
  while (lines_.size() > kMostRounds || (bytes_ > kMostBytes && lines_.size() > 1)) {
    bytes_ -= lines_.front().text.size();
    lines_.pop_front();
  }
}

std::string RecentRounds::Text(std::int64_t after) const {
  std::string text = "[";
  for (const Line& line : lines_) {
    if (after >= 0 && line.round.value <= static_cast<std::uint64_t>(after)) continue;
    if (text.size() > 1) text += ",\n";
    text += line.text;
  }
  return text + "]\n";
}

}  // namespace lockstep::coordinator
