// Where operations read from: the own buffers, or blocks of peers' arenas that have the generation
// that is asked for, and have it still when the operation has ended.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "base/messages.h"
#include "transport/mapping/peer_arena.h"
#include "worker/core/step_io.h"
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

// A source that can be read now. Its memory stays where it is as long as this.
struct OpenSource {
  const std::byte* data = nullptr;
  // At this number, of a buffer of FP32 or of one of 16 bits.
  const float* Floats(std::uint64_t at) const { return reinterpret_cast<const float*>(data) + at; }
  const std::uint16_t* Narrow(std::uint64_t at) const {
    return reinterpret_cast<const std::uint16_t*>(data) + at;
  }
  std::shared_ptr<const transport::PeerArena> arena;  // null: own memory
  std::size_t block = 0;
  std::uint64_t generation = 0;
  bool StillValid() const { return arena == nullptr || arena->StillValid(block, generation); }
};

// Of those that are not there it is false.
inline bool StillValid(const std::vector<OpenSource>& sources) {
  return std::ranges::all_of(sources, [](const OpenSource& s) { return s.StillValid(); });
}
inline bool StillValid(const std::vector<std::optional<OpenSource>>& sources) {
  return std::ranges::all_of(sources, [](const auto& s) { return s && s->StillValid(); });
}

// One thread at a time. To ask a peer for its memory may take as long as is waited for it.
class Sources {
 public:
  // Both outlive it.
  Sources(WorkerBuffers& buffers, PeerArenas& arenas) : buffers_(buffers), arenas_(arenas) {}

  // Nullopt: it is not there (any more).
  std::optional<OpenSource> Open(const Source& source);
  // Of each.
  std::vector<std::optional<OpenSource>> Open(const std::vector<action::SourceRange>& from);
  // Nullopt where one is not there.
  std::optional<std::vector<OpenSource>> OpenAll(const std::vector<action::SourceRange>& from);

 private:
  WorkerBuffers& buffers_;
  PeerArenas& arenas_;
};

}  // namespace lockstep::worker
