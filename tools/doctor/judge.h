// Judges facts, and gives a remedy for each problem. It is pure.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tools/doctor/facts.h"

namespace lockstep::doctor {

enum class Verdict { kOk, kWarning, kProblem };
std::string_view Name(Verdict verdict);  // "ok", "warning", "problem"

struct Line {
  std::string section;
  std::string name;
  std::string value;
  Verdict verdict = Verdict::kOk;
  std::string remedy;  // in plain words; empty for kOk, never else
};

// The lines in reading order.
std::vector<Line> Judge(const Facts& facts);

Verdict Worst(const std::vector<Line>& lines);

}  // namespace lockstep::doctor
