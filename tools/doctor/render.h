// The findings for people and for programs.
#pragma once

#include <string>
#include <vector>

#include "tools/doctor/facts.h"
#include "tools/doctor/judge.h"

namespace lockstep::doctor {

// Aligned columns, a remedy below the line that it is for; `colour` for terminals.
std::string RenderText(const std::vector<Line>& lines, bool colour);

// docs/reference/operations.md has its keys. Ends with a line break.
std::string RenderJson(const Facts& facts, const std::vector<Line>& lines);

}  // namespace lockstep::doctor
