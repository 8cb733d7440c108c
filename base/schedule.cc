#include "base/schedule.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <string>
#include <vector>

#include "base/suggest.h"

namespace lockstep {

Status CheckSchedule(const ScheduleSection& schedule) {
  const std::vector<std::string> known = {"constant", "step", "exponential", "cosine"};
  if (std::find(known.begin(), known.end(), schedule.name) == known.end()) {
    return Error{ErrorCode::kInvalid, NotOneOf("schedule.name", schedule.name, known)};
  }
  const bool needs_every = schedule.name == "step" || schedule.name == "exponential";
  if (needs_every && !(schedule.step_every > 0)) {
    return Error{
        ErrorCode::kInvalid,
        fmt::format("schedule.step_every: {} needs a number of updates above 0", schedule.name)};
  }
  return {};
}

double LearningRate(const ScheduleSection& schedule, double base, double update,
                    double total_updates) {
  double rate = base;
  if (schedule.name == "step") {
    rate = base * std::pow(schedule.factor, std::floor(update / schedule.step_every));
  } else if (schedule.name == "exponential") {
    rate = base * std::pow(schedule.factor, update / schedule.step_every);
  } else if (schedule.name == "cosine") {
    const double length = std::max(total_updates - schedule.warmup, 1.0);
    const double progress = std::clamp((update - schedule.warmup) / length, 0.0, 1.0);
    const double share = 0.5 * (1.0 + std::cos(std::numbers::pi * progress));
    rate = schedule.final_lr + (base - schedule.final_lr) * share;
  }
  if (update + 1 < schedule.warmup) rate *= (update + 1) / schedule.warmup;
  return rate;
}

double StepFraction(std::uint64_t included, std::uint64_t planned) {
  LOCKSTEP_CHECK(included > 0 && planned > 0);
  return static_cast<double>(included) / static_cast<double>(planned);
}

}  // namespace lockstep
