// Learning rates over the course of a job. The coordinator computes them once and sends them along
// with each commit: no two machines need to agree on a cosine.
#pragma once

#include <cstdint>

#include "base/job_config.h"
#include "base/result.h"

namespace lockstep {

// Checks that the section makes a schedule; errors name the key.
Status CheckSchedule(const ScheduleSection& schedule);

// The rate of update number `update` (0, 1, ...) of a job of `total_updates`. Updates count whole
// rounds, so `update` may be a fraction. `base` is the rate before any schedule. The first `warmup`
// updates rise linearly from 0, without being 0. Only `cosine` uses `total_updates`; beyond them it
// stays at final_lr. CheckSchedule must accept the section.
//   step         base * factor ^ floor(update / step_every)
//   exponential  base * factor ^ (update / step_every)
//   cosine       from base, after the warm-up, to final_lr along half a cosine (Loshchilov, Hutter
//   2017)
double LearningRate(const ScheduleSection& schedule, double base, double update,
                    double total_updates);

// The linear scaling rule (Goyal et al. 2017) by the samples that an update really includes: half
// of the planned samples are half of a step. The result is above 0.
double StepFraction(std::uint64_t included, std::uint64_t planned);

}  // namespace lockstep
