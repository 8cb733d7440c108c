// Recorded factors over time, for pattern=trace.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "base/slowdown_spec.h"

namespace lockstep {

// Each line is "SECONDS FACTOR", ascending; # begins a comment. Errors begin with "name:line: ".
Result<std::vector<TracePoint>> ParseTrace(std::string_view text, const std::string& name);

// Reads spec->file, if it names one, into spec->points. Only shells call it.
Status LoadTrace(SlowdownSpec* spec);

}  // namespace lockstep
