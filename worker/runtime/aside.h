// Room of a device's memory in which operations put numbers aside: what of sums or parameters has
// to lie elsewhere, or in another type, while it is worked on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "worker/layout/layout.h"
#include "worker/memory/exchange_memory.h"
#include "worker/runtime/pages.h"

namespace lockstep::worker {

// A piece of one of several ranges.
struct Piece {
  std::size_t of = 0;  // which
  FloatRange range;
};

// The thread's whose operations they are.
class AsideRoom {
 public:
  struct Aside {
    Piece piece;
    float* at;  // for as many numbers
  };
  // For so many numbers at a time, which take memory when they are first used. `memory` outlives
  // it.
  AsideRoom(ExchangeMemory& memory, std::uint64_t floats) : memory_(memory), floats_(floats) {}

  // Calls `work` with as many of the pieces, in order, as there is room for, until all had their
  // turn; they are cut where there is no more. All in one stream, so what is put there next comes
  // behind what reads it. A DeviceError where there is not so much memory.
  void Use(const std::vector<Piece>& pieces,
           const std::function<void(std::span<const Aside>)>& work);

 private:
  ExchangeMemory& memory_;
  const std::uint64_t floats_;
  std::optional<Pages> pages_;
};

}  // namespace lockstep::worker
