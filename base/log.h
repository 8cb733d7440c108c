// Logging for shells: spdlog's default logger, to standard error. Pure code does not log; it
// returns reasons.
#pragma once

#include <spdlog/spdlog.h>

#include <string>

namespace lockstep {

// Sets the process's log line form ("[name] level message", with time) and level
// (trace|debug|info|warn|error). Colours only on a terminal. Call once from main.
void InitLogging(const std::string& process_name, const std::string& level);

// What nobody reads any more (a pipe whose reader has ended, as tee does at Ctrl-C) and what is
// beyond a limit of file sizes is a write that failed, as on a full disk, and does not end the
// process. For main(), before it writes.
void OutliveFailedWrites();

}  // namespace lockstep
