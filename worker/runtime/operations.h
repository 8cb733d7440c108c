// What the reduction thread does, and the data thread where it is little: sums, updates, copies and
// digests, as the core asks for them.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "base/messages.h"
#include "transport/mapping/peer_arena.h"
#include "worker/core/layout.h"
#include "worker/core/step_io.h"
#include "worker/optimizer/optimizer.h"
#include "worker/runtime/crew.h"
#include "worker/runtime/host_scratch.h"
#include "worker/runtime/worker_buffers.h"

namespace lockstep::worker {

// The arenas of peers, by member. Mapped by one thread and read by another.
class PeerArenas {
 public:
  using Arena = std::shared_ptr<const transport::PeerArena>;
  // `again`: maps it once more; null where that fails. Any thread.
  void Put(const MemberId& peer, Arena arena, std::function<Arena()> again);
  void Drop(const MemberId& peer);
  // Stays valid for the holder whatever is dropped meanwhile.
  Arena Find(const MemberId& peer) const;
  // Mapped once more, for blocks that had no memory when it was the last time; waits for the peer.
  // Null where it cannot be had.
  Arena Renew(const MemberId& peer);

 private:
  struct Mapped {
    Arena arena;
    std::function<Arena()> again;
  };
  mutable std::mutex mutex_;
  std::map<MemberId, Mapped> arenas_;
};

class Operations {
 public:
  // `rounding_seed`: sums of 16 bits are rounded at random, by this seed. `scratch_floats`: so many
  // numbers a device puts aside at a time (16 MiB).
  Operations(const Layout& layout, WorkerBuffers& buffers, PeerArenas& arenas,
             const Optimizer& optimizer, std::optional<std::uint64_t> rounding_seed = std::nullopt,
             std::uint64_t scratch_floats = 4u << 20)
      : layout_(layout),
        buffers_(buffers),
        memory_(buffers.memory()),
        arenas_(arenas),
        optimizer_(optimizer),
        rounding_seed_(rounding_seed),
        scratch_floats_(scratch_floats),
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
  // A source that can be read now: own memory, or a peer's block that has the generation.
  struct Open {
    const std::byte* data = nullptr;
    // At this number, of a buffer of FP32 or of one of 16 bits.
    const float* Floats(std::uint64_t at) const {
      return reinterpret_cast<const float*>(data) + at;
    }
    const std::uint16_t* Narrow(std::uint64_t at) const {
      return reinterpret_cast<const std::uint16_t*>(data) + at;
    }
    std::shared_ptr<const transport::PeerArena> arena;
    std::size_t block = 0;
    std::uint64_t generation = 0;
    bool StillValid() const { return arena == nullptr || arena->StillValid(block, generation); }
  };
  std::optional<Open> OpenSource(const Source& source);
  std::vector<std::optional<Open>> OpenAll(const std::vector<action::SourceRange>& from);
  // A piece of one of several ranges.
  struct Piece {
    std::size_t of = 0;  // which
    FloatRange range;
  };
  // What can be done apart of the ranges, by several threads where it is large. Of a device's
  // memory each range is done as a whole, in order.
  std::vector<Piece> Pieces(const std::vector<FloatRange>& ranges) const;
  static bool Large(const std::vector<Piece>& pieces);
  void ForEach(const std::vector<Piece>& pieces, const std::function<void(const Piece&)>& work);
  // Calls with the floats, all at once where they lie, or piece by piece in a copy.
  void ReadByHost(const float* data, std::uint64_t count,
                  const std::function<void(std::span<const float>)>& read);
  struct Words {
    const float* data;
    std::uint64_t count;
  };
  // Of doubles, which lie in so many words each.
  double SumOfSquares(const std::vector<Words>& norms);
  // False: a sum is infinite or not a number. A device says so later.
  bool Sum(const action::Reduce& reduce, const std::vector<Open>& sources, const Slice& slice,
           bool large);
  void SquaresOfSums(const action::Reduce& reduce, const Slice& slice);
  // By a pass over each of them.
  std::vector<std::uint32_t> NotFinite(const action::Reduce& reduce,
                                       const std::vector<Open>& sources);
  // Of contributions that have some numbers of each grain. False: as below.
  bool SumSparse(const action::Reduce& reduce, const std::vector<Open>& sources,
                 const Slice& slice);
  // False: a sum was too large for its type.
  bool SumNarrow(const action::Reduce& reduce, const std::vector<Open>& sources,
                 const Slice& slice);
  // Sums of so many entries for a grain are all of the gradient in FP32, to be read where they lie.
  bool Plain(std::uint32_t entries) const {
    return buffers_.type() == NumberType::kFp32 && entries == 0;
  }
  // The sums of `range`, whose first parameter begins a grain, in FP32.
  void Widen(const Open& sums, std::uint32_t entries, const FloatRange& range, float* to) const;
  // Updates the optimizer's state in `range`, and as many parameters, which lie there with the sums
  // of their gradients.
  void Update(const UpdateScalars& scalars, const FloatRange& range, float* parameters,
              const float* gradient_sum);
  void UpdateOnHost(const action::UpdateHeld& update, const UpdateScalars& scalars);
  // On a device, whose memory has room for so much of it aside at a time: pieces, cut where there
  // is no more room, with the place of each.
  struct Aside {
    Piece piece;
    float* at;
  };
  void ByScratch(const std::vector<Piece>& pieces,
                 const std::function<void(std::span<const Aside>)>& work);
  // With the sums of each, in FP32. It does not write there.
  void ForWidened(const std::vector<Piece>& pieces, const std::vector<Open>& sums,
                  const std::function<void(const Aside&)>& work);
  // Where the state lies in HeldState.
  void UpdateOnDevice(const action::UpdateHeld& update, const UpdateScalars& scalars);
  // The state's parameters in `range` by sums that have to be widened.
  void UpdateWidened(const UpdateScalars& scalars, const FloatRange& range, const Open& sums,
                     std::uint32_t entries);
  // min(1, clip / (scale * norm)); nullopt when the norms were torn.
  std::optional<float> ClipFactor(const action::Apply& apply);
  // Of each slice; nullopt when one is not there (any more).
  std::optional<std::vector<Open>> OpenSlices(const action::Apply& apply);
  static bool StillValid(const std::vector<Open>& sources);
  static bool AllValid(const std::vector<std::optional<Open>>& sources);
  std::uint64_t DigestOfBucket(std::uint32_t bucket);

  const Layout& layout_;
  WorkerBuffers& buffers_;
  ExchangeMemory& memory_;
  PeerArenas& arenas_;
  const Optimizer& optimizer_;
  const std::optional<std::uint64_t> rounding_seed_;
  const std::uint64_t scratch_floats_;
  const std::uint32_t state_tensors_;
  // Grows whenever the state changes, so snapshots with the same number are of the same values. The
  // data thread writes what is copied from others.
  std::atomic<std::uint64_t> changes_{0};
  std::atomic<bool> told_of_large_sums_{false};
  std::mutex scratch_mutex_;  // guards scratch_
  HostScratch scratch_{memory_};
  std::optional<Pages> device_scratch_;  // ByScratch's
  Crew crew_;
};

}  // namespace lockstep::worker
