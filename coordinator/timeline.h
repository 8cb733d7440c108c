// The run as a timeline in the Chrome trace format, which Perfetto and chrome://tracing open: one
// track a worker with its units, one for the rounds.
#pragma once

#include <istream>
#include <ostream>

namespace lockstep::coordinator {

// Reads lines of rounds.jsonl, writes one JSON document; a line that cannot be read ends the
// timeline there. Memory: one line.
void TimelineFromRounds(std::istream& rounds, std::ostream& out);

}  // namespace lockstep::coordinator
