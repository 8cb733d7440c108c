// Maps the arenas of peers on this host, which may block for seconds, on a thread of its own.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/messages.h"
#include "worker/core/step_io.h"
#include "worker/memory/exchange_memory.h"
#include "worker/runtime/operations.h"
#include "worker/runtime/task_thread.h"

namespace lockstep::worker {

class PeerMapper {
 public:
  // Runs a task on the thread that it names. Any thread.
  using Run = std::function<void(std::function<void()>)>;
  struct Threads {
    Run core;
    Run reduction;
  };

  // `memory`: where this worker's exchange works; it is to read what is mapped. `arenas` gets that.
  PeerMapper(MemberId self, std::vector<std::byte> job_key, Duration patience,
             ExchangeMemory& memory, PeerArenas& arenas, Threads threads)
      : self_(self),
        job_key_(std::move(job_key)),
        patience_(patience),
        memory_(memory),
        arenas_(arenas),
        threads_(std::move(threads)) {}

  // --- the core's thread
  // `done` gets what has come of it, unless the peer is unmapped or mapped again before.
  void Map(const PeerInfo& peer, std::function<void(const event::PeerMapped&)> done);
  void Unmap(const MemberId& peer);
  // How fast a mapped peer's memory is read, GB/s.
  std::optional<double> Rate(const MemberId& peer) const;
  // Why the peer could not be mapped; empty where it was not tried or is mapped.
  std::string WhyNot(const MemberId& peer) const;

  // Ends the thread, after what it is at.
  void Stop() { thread_.reset(); }

 private:
  void Finish(std::uint64_t number, const event::PeerMapped& mapped,
              std::shared_ptr<const transport::PeerArena> arena, double rate,
              std::function<PeerArenas::Arena()> again,
              const std::function<void(const event::PeerMapped&)>& done);

  const MemberId self_;
  const std::vector<std::byte> job_key_;
  const Duration patience_;
  ExchangeMemory& memory_;
  PeerArenas& arenas_;
  const Threads threads_;
  std::map<MemberId, double> rates_;
  std::map<MemberId, std::string> failures_;
  std::map<MemberId, std::uint64_t> asked_;  // the number of the last time
  std::uint64_t last_asked_ = 0;
  std::unique_ptr<TaskThread> thread_ = std::make_unique<TaskThread>("mapper");
};

}  // namespace lockstep::worker
