// The memory of a worker: parameters, optimizer state, contributions, sums and what is fetched.
// step_io.h says what each kind of buffer is for; docs/reference/memory.md has their sum.
// Contributions, sums and staging are of the type and in the form that the job exchanges. Where
// that is not all of the gradient in FP32 there is a buffer more, in which the gradient is summed
// until it is sealed. Where part of the gradient is kept, there are three more: what is kept, and
// one for each part of a round.
//
// All of it lies in one kind of memory (memory/exchange_memory.h), the host's or a device's. Only
// the snapshot of a checkpoint and state that is passing through (held_state.h) are always the
// host's. Contributions and sums lie in the arena when peers map it. A page of them takes memory
// once it was written, on a device a spare one of them when it is first used. Staging is made when
// the first piece of a contributor comes, so never for one that is mapped. On the host it takes
// memory where it is written: the slices that this worker owns. The sums that others have made lie
// in memory that is made when the first of them comes, and never where all others are mapped.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "transport/mapping/arena.h"
#include "transport/transport.h"
#include "worker/core/step_io.h"
#include "worker/layout/layout.h"
#include "worker/memory/exchange_memory.h"
#include "worker/memory/host_memory.h"
#include "worker/memory/narrow.h"
#include "worker/runtime/held_state.h"
#include "worker/runtime/memory_account.h"
#include "worker/runtime/pages.h"

namespace lockstep::worker {

// The name that a contribution or sum buffer has in the arena.
std::string BlockName(const BufferId& buffer);

class WorkerBuffers {
 public:
  // Kinds of which only parts will be touched. Of sums it is those of the own shard, with what
  // others have summed beside them (MachineConfig::sums_apart). Of state, and of sums with it, it
  // is what this worker holds (optimizer.replicas).
  enum class Parts : std::uint8_t { kNone, kSums, kSumsAndState };

  // `memory`: of a device; null: the host's. `arena`: make one for peers on this host. `type`: of
  // what is exchanged, of Layout::number_bytes. `shards`: into which state is shared out, with
  // kSumsAndState. kUnavailable where the memory is not to be had.
  static Result<std::unique_ptr<WorkerBuffers>> Make(
      const Layout& layout, std::uint32_t state_tensors, bool arena,
      std::shared_ptr<ExchangeMemory> memory = nullptr, NumberType type = NumberType::kFp32,
      Parts parts = Parts::kNone, std::uint32_t shards = 0);

  ExchangeMemory& memory() { return *memory_; }
  NumberType type() const { return type_; }

  // Null without an arena.
  transport::Arena* arena() { return arena_ ? &*arena_ : nullptr; }
  std::size_t ArenaBlock(const BufferId& buffer) const;

  // Any thread; the memory stays where it is. For who may read and write it see step_io.h. On a
  // device it is for memory() alone to follow the pointer.
  std::byte* Data(const BufferId& buffer);
  // Its content is needed no longer, but for `kept` (numbers of it; ascending, apart), and nobody
  // uses it. The part of it that takes memory is given back, where it is not an arena's. Any
  // thread.
  void GiveBack(const BufferId& buffer, std::span<const FloatRange> kept = {});
  // Of one that is FP32.
  float* At(const BufferId& buffer);
  // Numbers in the buffer, bytes of each, and of all.
  std::uint64_t Size(const BufferId& buffer) const;
  std::uint64_t NumberBytes(const BufferId& buffer) const;
  std::uint64_t Bytes(const BufferId& buffer) const { return Size(buffer) * NumberBytes(buffer); }
  // Where the gradient of the part in hand is summed, in FP32: this contribution, or, where that is
  // of 16 bits, the one buffer for all of them.
  float* Gradient(const BufferId& contribution);
  // The optimizer's tensors, where they are not buffers of kState: shared out, on a device.
  HeldState* held() { return held_ ? &*held_ : nullptr; }
  // Where the layout has a rank: the last tensor of the optimizer's state, which has the factors of
  // the last rounds (factors.h).
  float* factors() { return At({BufferKind::kState, state_tensors_, {}}); }
  // The buffers of a Residual; null where contributions have all of the gradient.
  float* residual(std::uint32_t index) {
    return gradients_.size() == 1 + kMaxParts ? reinterpret_cast<float*>(gradients_[index].data())
                                              : nullptr;
  }

  // Returns what takes memory now, and what did when it was the most of all times that were noted.
  // Memory grows, but for snapshots that are dropped, so it is noted when those have been taken,
  // and at the end. Any thread.
  MemoryAccount Backed();
  void NoteAccount();
  MemoryAccount peak();

  float* parameters() { return At({BufferKind::kState, 0, {}}); }
  // Where the program makes the update itself (Layout::whole): its gradient, as many floats as the
  // parameters, for the thread that has the update in hand.
  float* update_gradient() { return reinterpret_cast<float*>(update_gradient_->data()); }
  // Snapshots of tensors, 0: the parameters. kCheckpoint: in the host's memory. Any thread, but not
  // two for the same one.
  //
  // Where the tensor as it is after `update` is to be copied to; with null there is nothing to do,
  // because the other kind has that very copy. It is now both's. (kCompute is never shared.)
  float* BeginSnapshot(std::uint32_t tensor, action::SnapshotKind kind, std::uint64_t update);
  const float* snapshot(std::uint32_t tensor, action::SnapshotKind kind);
  // Updates that are counted from here on have nothing to do with those counted before.
  void ForgetSnapshots();
  // Nobody reads it any more.
  void DropSnapshot(std::uint32_t tensor, action::SnapshotKind kind);

  // The memory at `at`, a buffer's or a snapshot's, which stays as long as what is returned: a
  // snapshot is then neither dropped nor written anew. Any thread.
  static std::shared_ptr<const void> Keep(const std::shared_ptr<WorkerBuffers>& buffers,
                                          const float* at);

  // The buffer as a region of `transport`, registered at its first use. The transport's data
  // thread.
  Result<transport::RegionId> Region(transport::Transport& transport, const BufferId& buffer);
  // Another transport is used from here on.
  void ForgetRegions() {
    regions_.clear();
    if (held_) held_->ForgetRegions();
  }

 private:
  WorkerBuffers(const Layout& layout, std::uint32_t state_tensors,
                std::shared_ptr<ExchangeMemory> memory, NumberType type);

  // One that has no memory before it is used. On the host all have pages, which take memory when
  // they are touched.
  bool IsSpare(const BufferId& buffer) const;
  // True for a buffer of which few pages are touched.
  bool HoldsFactors(const BufferId& buffer) const {
    return has_factors_ && buffer.kind == BufferKind::kState && buffer.index == state_tensors_;
  }
  // At the end of its pages: those of the factors' tensor, also where all state is one run.
  std::uint64_t BytesForFactors(const BufferId& buffer) const {
    const bool run =
        has_factors_ && whole_ && buffer.kind == BufferKind::kState && buffer.index == 1;
    return HoldsFactors(buffer) || run ? Bytes(buffer) : 0;
  }
  std::uint64_t BackedState(const BufferId& buffer, const Pages& pages) const;
  // Bytes of the pages of a buffer of this worker's own.
  std::uint64_t PagesOf(const BufferId& buffer) const;
  // A DeviceError where there is not so much: also of the host's, where address space is limited.
  static Pages Take(ExchangeMemory& memory, std::uint64_t bytes);

  const std::shared_ptr<ExchangeMemory> memory_;
  HostMemory host_;
  const NumberType type_;
  std::uint64_t parameter_count_;
  std::uint64_t contribution_numbers_;
  std::uint64_t sum_floats_;
  std::uint64_t state_out_floats_;
  bool whole_;
  bool has_factors_;
  std::uint64_t factor_bytes_;
  std::uint32_t state_tensors_;
  std::optional<transport::Arena> arena_;
  std::optional<HeldState> held_;  // set by Make
  std::vector<Pages> gradients_;   // where contributions are not the gradients themselves
  std::map<BufferId, transport::RegionId> regions_;
  std::mutex mutex_;  // guards the rest, which changes under the threads that look into it
  std::map<BufferId, Pages> pages_;
  std::optional<Pages> update_gradient_;  // set by Make
  struct Snapshot {
    std::shared_ptr<Pages> pages;  // perhaps another kind's as well
    std::uint64_t update = 0;
  };
  std::map<std::pair<action::SnapshotKind, std::uint32_t>, Snapshot> snapshots_;
  MemoryAccount peak_;
};

}  // namespace lockstep::worker
