// Logging for shells: spdlog's default logger, to standard error. Pure code does not log; it
// returns reasons.
#pragma once

#include <spdlog/spdlog.h>

#include <string>

namespace lockstep {

// Sets the process's log line form ("[name] level message", with time) and level
// (trace|debug|info|warn|error). It colours lines only on a terminal. Call it once from main.
void InitLogging(const std::string& process_name, const std::string& level);

// A write to a pipe without a reader (tee ends at Ctrl-C), or beyond the limit of file sizes, then
// fails as on a full disk. It does not end the process. main() calls it before it writes.
void OutliveFailedWrites();

}  // namespace lockstep
