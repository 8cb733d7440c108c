// The findings for people and for programs.
#pragma once

#include <string>
#include <vector>

#include "tools/doctor/facts.h"
#include "tools/doctor/judge.h"

namespace lockstep::doctor {

// Columns are aligned, with a remedy below its line; `colour` is for terminals.
std::string RenderText(const std::vector<Line>& lines, bool colour);

// docs/reference/operations.md lists its keys. It ends with a line break.
std::string RenderJson(const Facts& facts, const std::vector<Line>& lines);

}  // namespace lockstep::doctor
