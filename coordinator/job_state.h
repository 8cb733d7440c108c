// What a checkpoint holds beside the tensors: where the job stands after a closed round.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/ids.h"
#include "base/result.h"
#include "coordinator/records.h"
#include "coordinator/sampler.h"

namespace lockstep::coordinator {

struct JobState {
  RoundId next_round;  // the first that is not in the tensors
  std::uint64_t updates = 0;
  SamplerState sampler;
  Totals totals;
  std::string dataset_digest;
  std::uint64_t test_samples = 0;
  std::uint64_t parameter_count = 0;
  std::uint32_t state_tensors = 0;
};

std::string ToJson(const JobState& state);
Result<JobState> JobStateFromJson(std::string_view text);

}  // namespace lockstep::coordinator
