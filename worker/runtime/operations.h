// The operations of the reduction thread, and of the data thread where they are little: sums,
// copies and digests, as the core asks for them, and updates (updating.h).
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "worker/core/step_io.h"
#include "worker/layout/layout.h"
#include "worker/optimizer/optimizer.h"
#include "worker/runtime/passes.h"
#include "worker/runtime/sources.h"
#include "worker/runtime/summing.h"
#include "worker/runtime/updating.h"
#include "worker/runtime/worker_buffers.h"

namespace lockstep::worker {

class Operations {
 public:
  // `seed`: the job's. `rounding_seed`: sums of 16 bits are rounded at random, by this seed.
  // `scratch_floats`: so many numbers a device puts aside at a time (16 MiB).
  Operations(const Layout& layout, WorkerBuffers& buffers, PeerArenas& arenas,
             const Optimizer& optimizer, std::optional<std::uint64_t> rounding_seed = std::nullopt,
             std::uint64_t seed = 0, std::uint64_t scratch_floats = 4u << 20)
      : layout_(layout),
        buffers_(buffers),
        memory_(buffers.memory()),
        sources_(buffers, arenas),
        summing_(layout, buffers, rounding_seed),
        passes_(layout, buffers),
        updating_(layout, buffers, optimizer, sources_, summing_, passes_, changes_, seed,
                  scratch_floats),
        state_tensors_(static_cast<std::uint32_t>(optimizer.state_names().size())) {}

  // How much the operation reads and writes.
  std::uint64_t Bytes(const action::Reduce& reduce) const;
  std::uint64_t Bytes(const action::CopySums& copy) const;
  std::uint64_t Bytes(const action::UpdateHeld& update) const;
  std::uint64_t Bytes(const action::TakeParameters& take) const;
  std::uint64_t Bytes(const action::Apply& apply) const;
  std::uint64_t Bytes(const action::CopyState& copy) const;
  std::uint64_t Bytes(const action::TakeSnapshot& take) const;
  std::uint64_t Bytes(const action::DigestState& digest) const;
  std::uint64_t Bytes(const action::DigestReplica& digest) const;

  // How many threads carry out a large operation together, on the host's memory. Any thread.
  void UseThreads(std::size_t threads) { passes_.UseThreads(threads); }

  // A copy from others changes the state, too. Any thread.
  void NoteStateWritten() { changes_.fetch_add(1, std::memory_order_relaxed); }

  // At once, while no operation is under way on what it names.
  void DropHeldState(const action::DropHeldState& drop);

  // One thread at a time, in the order of the core. Of these Apply alone writes the parameters and
  // the optimizer's state; with optimizer.replicas UpdateHeld the one, TakeParameters the other.
  event::OpDone Run(const action::Reduce& reduce);
  event::OpDone Run(const action::CopySums& copy);
  event::OpDone Run(const action::UpdateHeld& update) { return updating_.UpdateHeld(update); }
  event::OpDone Run(const action::TakeParameters& take);
  event::OpDone Run(const action::Apply& apply) { return updating_.Apply(apply); }
  // Of an update that the program makes: writes its gradient, the mean, clipped, to
  // WorkerBuffers::update_gradient(). OpDone where it cannot be had: no update is made then.
  std::optional<event::OpDone> Gather(const action::Apply& apply) {
    return updating_.Gather(apply);
  }
  // The program has made it. On its thread; nothing else touches the state meanwhile.
  event::OpDone EndUpdate(std::uint64_t op, std::uint32_t digest_bucket);
  event::OpDone Run(const action::CopyState& copy);
  event::OpDone Run(const action::TakeSnapshot& take);
  event::OpDone Run(const action::DigestState& digest);
  event::OpDone Run(const action::DigestReplica& digest);

 private:
  const Layout& layout_;
  WorkerBuffers& buffers_;
  ExchangeMemory& memory_;
  // Grows whenever the state changes, so snapshots with the same number are of the same values. The
  // data thread writes what is copied from others.
  std::atomic<std::uint64_t> changes_{0};
  Sources sources_;
  Summing summing_;
  Passes passes_;
  Updating updating_;
  const std::uint32_t state_tensors_;
  std::atomic<bool> told_of_large_sums_{false};
};

}  // namespace lockstep::worker
