// Updates of the parameters and the optimizer's state by the sums of a round's gradients, in the
// form that the job exchanges them (summing.h). They are clipped where optimizer.clip says so.
//
// Threads: the one whose operations they are; large ones share their pieces out (passes.h).
// Ownership: all that it is made with outlives it. Errors: sources that are not there, or not any
// more, make OpDone::torn.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "worker/core/step_io.h"
#include "worker/layout/layout.h"
#include "worker/memory/factors.h"
#include "worker/optimizer/optimizer.h"
#include "worker/runtime/aside.h"
#include "worker/runtime/passes.h"
#include "worker/runtime/sources.h"
#include "worker/runtime/summing.h"
#include "worker/runtime/worker_buffers.h"

namespace lockstep::worker {

class Updating {
 public:
  // `changes` grows whenever the state changes. `seed`: the job's. `scratch_floats`: so many
  // numbers a device puts aside at a time.
  Updating(const Layout& layout, WorkerBuffers& buffers, const Optimizer& optimizer,
           Sources& sources, Summing& summing, Passes& passes, std::atomic<std::uint64_t>& changes,
           std::uint64_t seed, std::uint64_t scratch_floats)
      : layout_(layout),
        buffers_(buffers),
        memory_(buffers.memory()),
        optimizer_(optimizer),
        sources_(sources),
        summing_(summing),
        passes_(passes),
        changes_(changes),
        factors_(layout, buffers.type(), seed),
        aside_(memory_, scratch_floats),
        state_tensors_(static_cast<std::uint32_t>(optimizer.state_names().size())) {}

  // Updates all parameters and their state.
  event::OpDone Apply(const action::Apply& apply);
  // Updates the shards that this worker holds (optimizer.replicas). The new parameters take the
  // place of their sums.
  event::OpDone UpdateHeld(const action::UpdateHeld& update);
  // See Operations::Gather.
  std::optional<event::OpDone> Gather(const action::Apply& apply);

 private:
  // Updates the optimizer's state in `range`, and as many parameters, which lie there with the sums
  // of their gradients.
  void Update(const UpdateScalars& scalars, const FloatRange& range, float* parameters,
              const float* gradient_sum);
  void UpdateOnHost(const action::UpdateHeld& update, const UpdateScalars& scalars);
  // The same where the state lies in HeldState.
  void UpdateOnDevice(const action::UpdateHeld& update, const UpdateScalars& scalars);
  // Calls with all of the pieces in turn, and with the sums of each in FP32, which it does not
  // write. On a device.
  void ForWidened(const std::vector<Piece>& pieces, const std::vector<OpenSource>& sums,
                  const std::function<void(const AsideRoom::Aside&)>& work);
  // Calls with piece after piece of the parameters and the gradient's sums for them: the product of
  // what is summed, which is one factor, with the other one. Any threads, each on pieces of its
  // own. The summed factor is kept.
  void ForFactored(const action::Apply& apply, const std::vector<OpenSource>& sources,
                   const std::function<void(const FloatRange&, const float*)>& use);
  // The state's parameters in `range` by sums that have to be widened.
  void UpdateWidened(const UpdateScalars& scalars, const FloatRange& range, const OpenSource& sums,
                     std::uint32_t entries);
  // min(1, clip / (scale * norm)); nullopt when the norms were torn.
  std::optional<float> ClipFactor(const action::Apply& apply);

  const Layout& layout_;
  WorkerBuffers& buffers_;
  ExchangeMemory& memory_;
  const Optimizer& optimizer_;
  Sources& sources_;
  Summing& summing_;
  Passes& passes_;
  std::atomic<std::uint64_t>& changes_;
  Factors factors_;  // where the layout has a rank
  AsideRoom aside_;
  const std::uint32_t state_tensors_;
};

}  // namespace lockstep::worker
