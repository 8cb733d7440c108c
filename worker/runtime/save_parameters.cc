#include "worker/runtime/save_parameters.h"

#include <fmt/format.h>

#include <cstdint>
#include <vector>

#include "worker/compute/compute.h"
#include "worker/runtime/rescue.h"

namespace lockstep::worker {

std::string SaveParameters(const JobConfig& config, const msg::Welcome& welcome,
                           const SessionParts& parts, const action::Detached& detached) {
  constexpr const char* kGoOn = "to go on, start the job again with --resume";
  const auto nothing = [&](const std::string& why) {
    return fmt::format("this worker saves nothing ({}); {}", why, kGoOn);
  };
  if (!config.checkpoint.rescue) return nothing("checkpoint.rescue is off");
  if (EndOfJob(welcome.run_dir, welcome.run_id) == JobEnd::kCompleted) {
    return "this worker saves nothing, for the job has completed";
  }
  if (!detached.held) return nothing(detached.lack);
  if (detached.held->next == RoundId(0)) return nothing("no round was committed");
  RescueState state{.run_dir = welcome.run_dir,
                    .run_id = welcome.run_id,
                    .worker = welcome.self.worker,
                    .held = *detached.held,
                    .parameters = parts.description.parameter_count,
                    .tensors = {parts.buffers->parameters()},
                    .state_names = parts.optimizer->state_names(),
                    .memory = &parts.buffers->memory()};
  // In a device only the shards that are held have memory, so they are read into the host's.
  HeldState* const on_device = parts.buffers->held();
  state.state_on_host = on_device != nullptr;
  std::vector<std::vector<float>> copies;
  state.shards_in_all = config.optimizer.Shards(welcome.workers);
  for (const std::uint32_t shard : detached.shards) {
    RescueShard& one = state.shards.emplace_back(RescueShard{shard, {}});
    for (const Slice& slice : parts.layout().EqualShard(shard, state.shards_in_all)) {
      one.ranges.push_back(slice.range);
    }
  }
  try {
    for (std::uint32_t t = 1; t <= parts.state_tensors(); ++t) {
      if (on_device == nullptr) {
        state.tensors.push_back(parts.buffers->At({BufferKind::kState, t, {}}));
        continue;
      }
      std::vector<float>& copy = copies.emplace_back(parts.description.parameter_count);
      on_device->Read(t, copy.data());
      state.tensors.push_back(copy.data());
    }
    const auto saved = SaveRescue(state);
    return saved ? fmt::format("{}; {}", *saved, kGoOn) : nothing(saved.error().message);
  } catch (const DeviceError& error) {
    return nothing(error.what());
  }
}

}  // namespace lockstep::worker
