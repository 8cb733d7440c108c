// What a checkpoint holds beside the tensors: where the job stands after a closed round.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/digest.h"
#include "base/ids.h"
#include "base/messages.h"
#include "base/result.h"
#include "coordinator/record/records.h"
#include "coordinator/round/sampler.h"

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
  std::vector<TensorInfo> tensors = {};              // as in Ready
  std::vector<std::string> state_names = {};         // as in Ready
  std::map<std::string, std::string> settings = {};  // resume_rules.h
  Digest128 digest = {};  // of the values of all tensors, in the order of StateChunk
};

// For messages: "[3, 4]", "[momentum]".
std::string InWords(const std::vector<std::uint64_t>& shape);
std::string InWords(const std::vector<std::string>& names);

// Of all epochs so far, not served again: counted or skipped.
std::uint64_t SettledSamples(const SamplerState& sampler);

// With a checksum of itself.
std::string ToJson(const JobState& state);
// Takes nothing that ToJson cannot have written: errors are one line and say what is wrong.
Result<JobState> JobStateFromJson(std::string_view text);

}  // namespace lockstep::coordinator
