// Passes over the numbers that operations work on: piece by piece, by several threads where there
// are many, or through the host's memory where they lie in a device's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <span>
#include <vector>

#include "worker/core/step_io.h"
#include "worker/layout/layout.h"
#include "worker/runtime/aside.h"
#include "worker/runtime/crew.h"
#include "worker/runtime/host_scratch.h"
#include "worker/runtime/worker_buffers.h"

namespace lockstep::worker {

// An operation that writes as much is taken to write more than stays in a core's caches, and to be
// worth several threads.
inline constexpr std::uint64_t kLargeBytes = 1u << 20;

std::vector<FloatRange> RangesOf(const std::vector<action::SourceRange>& from);

// One thread at a time, but for UseThreads and what reads through the host.
class Passes {
 public:
  // Both outlive it.
  Passes(const Layout& layout, WorkerBuffers& buffers)
      : layout_(layout), buffers_(buffers), memory_(buffers.memory()) {}

  // How many threads carry out a large operation together, on the host's memory. Any thread.
  void UseThreads(std::size_t threads) { crew_.Use(threads); }
  std::size_t threads() const { return crew_.threads(); }

  // Cuts the ranges into pieces that several threads can do. A range in a device's memory stays
  // whole, and they are done in order.
  std::vector<Piece> Pieces(const std::vector<FloatRange>& ranges) const;
  static bool Large(const std::vector<Piece>& pieces);
  void ForEach(const std::vector<Piece>& pieces, const std::function<void(const Piece&)>& work);
  void ForEach(const std::vector<Piece>& pieces, bool large,
               const std::function<void(const Piece&)>& work);

  // --- any thread
  // Calls with the floats, all at once where they lie, or piece by piece in a copy.
  void ReadByHost(const float* data, std::uint64_t count,
                  const std::function<void(std::span<const float>)>& read);
  struct Words {
    const float* data;
    std::uint64_t count;
  };
  // Adds up the doubles that lie in these words, two words each.
  double SumOfSquares(const std::vector<Words>& norms);
  // Digests the bucket's parameters.
  std::uint64_t DigestOfBucket(std::uint32_t bucket);

 private:
  const Layout& layout_;
  WorkerBuffers& buffers_;
  ExchangeMemory& memory_;
  std::mutex scratch_mutex_;  // guards scratch_
  HostScratch scratch_{memory_};
  Crew crew_;
};

}  // namespace lockstep::worker
