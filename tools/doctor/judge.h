// Says of facts whether they are well, and what to do where not. Pure.
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

// In the order in which they are read.
std::vector<Line> Judge(const Facts& facts);

Verdict Worst(const std::vector<Line>& lines);

}  // namespace lockstep::doctor
