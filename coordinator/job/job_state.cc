#include "coordinator/job/job_state.h"

namespace lockstep::coordinator {

std::string InWords(const std::vector<std::uint64_t>& shape) {
  std::vector<std::string> extents;
  for (const std::uint64_t extent : shape) extents.push_back(std::to_string(extent));
  return InWords(extents);
}

std::string InWords(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return "[" + text + "]";
}

std::uint64_t SettledSamples(const SamplerState& sampler) {
  return sampler.epoch.value * sampler.epoch_samples + sampler.epoch_samples -
         SizeOf(sampler.uncounted);
}

}  // namespace lockstep::coordinator
