// What the reduction thread does, and the data thread where it is little: sums, updates, copies and
// digests, as the core asks for them.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "worker/core/step_io.h"
#include "worker/layout/layout.h"
#include "worker/memory/factors.h"
#include "worker/optimizer/optimizer.h"
#include "worker/runtime/aside.h"
#include "worker/runtime/crew.h"
#include "worker/runtime/host_scratch.h"
#include "worker/runtime/sources.h"
#include "worker/runtime/summing.h"
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
        optimizer_(optimizer),
        sources_(buffers, arenas),
        summing_(layout, buffers, rounding_seed),
        factors_(layout, buffers.type(), seed),
        aside_(memory_, scratch_floats),
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
  void UseThreads(std::size_t threads) { crew_.Use(threads); }

  // What is copied from others changes the state, too. Any thread.
  void NoteStateWritten() { changes_.fetch_add(1, std::memory_order_relaxed); }

  // At once, while no operation is under way on what it names.
  void DropHeldState(const action::DropHeldState& drop);

  // One thread at a time, in the order of the core. Of these Apply alone writes the parameters and
  // the optimizer's state; with optimizer.replicas UpdateHeld the one, TakeParameters the other.
  event::OpDone Run(const action::Reduce& reduce);
  event::OpDone Run(const action::CopySums& copy);
  event::OpDone Run(const action::UpdateHeld& update);
  event::OpDone Run(const action::TakeParameters& take);
  event::OpDone Run(const action::Apply& apply);
  // Of an update that the program makes: writes its gradient, the mean, clipped, to
  // WorkerBuffers::update_gradient(). OpDone where it cannot be had: no update is made then.
  std::optional<event::OpDone> Gather(const action::Apply& apply);
  // The program has made it. On its thread; nothing else touches the state meanwhile.
  event::OpDone EndUpdate(std::uint64_t op, std::uint32_t digest_bucket);
  event::OpDone Run(const action::CopyState& copy);
  event::OpDone Run(const action::TakeSnapshot& take);
  event::OpDone Run(const action::DigestState& digest);
  event::OpDone Run(const action::DigestReplica& digest);

 private:
  // What can be done apart of the ranges, by several threads where it is large. Of a device's
  // memory each range is done as a whole, in order.
  std::vector<Piece> Pieces(const std::vector<FloatRange>& ranges) const;
  static bool Large(const std::vector<Piece>& pieces);
  void ForEach(const std::vector<Piece>& pieces, const std::function<void(const Piece&)>& work);
  void ForEach(const std::vector<Piece>& pieces, bool large,
               const std::function<void(const Piece&)>& work);
  // Calls with the floats, all at once where they lie, or piece by piece in a copy.
  void ReadByHost(const float* data, std::uint64_t count,
                  const std::function<void(std::span<const float>)>& read);
  struct Words {
    const float* data;
    std::uint64_t count;
  };
  // Of doubles, which lie in so many words each.
  double SumOfSquares(const std::vector<Words>& norms);
  // Updates the optimizer's state in `range`, and as many parameters, which lie there with the sums
  // of their gradients.
  void Update(const UpdateScalars& scalars, const FloatRange& range, float* parameters,
              const float* gradient_sum);
  void UpdateOnHost(const action::UpdateHeld& update, const UpdateScalars& scalars);
  // Calls with all of the pieces in turn, and with the sums of each in FP32, which it does not
  // write. On a device.
  void ForWidened(const std::vector<Piece>& pieces, const std::vector<OpenSource>& sums,
                  const std::function<void(const AsideRoom::Aside&)>& work);
  // Where the state lies in HeldState.
  void UpdateOnDevice(const action::UpdateHeld& update, const UpdateScalars& scalars);
  // Calls with piece after piece of the parameters and the gradient's sums for them: the product of
  // what is summed, which is one factor, with the other one. Any threads, each on pieces of its
  // own. What is summed is kept.
  void ForFactored(const action::Apply& apply, const std::vector<OpenSource>& sources,
                   const std::function<void(const FloatRange&, const float*)>& use);
  // The state's parameters in `range` by sums that have to be widened.
  void UpdateWidened(const UpdateScalars& scalars, const FloatRange& range, const OpenSource& sums,
                     std::uint32_t entries);
  // min(1, clip / (scale * norm)); nullopt when the norms were torn.
  std::optional<float> ClipFactor(const action::Apply& apply);
  std::uint64_t DigestOfBucket(std::uint32_t bucket);

  const Layout& layout_;
  WorkerBuffers& buffers_;
  ExchangeMemory& memory_;
  const Optimizer& optimizer_;
  Sources sources_;
  Summing summing_;
  Factors factors_;  // where the layout has a rank
  AsideRoom aside_;
  const std::uint32_t state_tensors_;
  // Grows whenever the state changes, so snapshots with the same number are of the same values. The
  // data thread writes what is copied from others.
  std::atomic<std::uint64_t> changes_{0};
  std::atomic<bool> told_of_large_sums_{false};
  std::mutex scratch_mutex_;  // guards scratch_
  HostScratch scratch_{memory_};
  Crew crew_;
};

}  // namespace lockstep::worker
