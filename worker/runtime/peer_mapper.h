// Maps the arenas of peers on this host, which may block for seconds, on a thread of its own.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "base/messages.h"
#include "worker/runtime/operations.h"
#include "worker/runtime/task_thread.h"
#include "worker/step_io.h"

namespace lockstep::worker {

class PeerMapper {
 public:
  // Runs a task on the machine's thread. Any thread.
  using Run = std::function<void(std::function<void()>)>;

  // `arenas` gets what is mapped.
  PeerMapper(MemberId self, std::vector<std::byte> job_key, Duration patience, PeerArenas& arenas,
             Run run)
      : self_(self),
        job_key_(std::move(job_key)),
        patience_(patience),
        arenas_(arenas),
        run_(std::move(run)) {}

  // --- the machine's thread
  // `done` gets what has come of it, unless the peer is unmapped or mapped again before.
  void Map(const PeerInfo& peer, std::function<void(const event::PeerMapped&)> done);
  void Unmap(const MemberId& peer);
  // How fast a mapped peer's memory is read, GB/s.
  std::optional<double> Rate(const MemberId& peer) const;

  // Ends the thread, after what it is at.
  void Stop() { thread_.reset(); }

 private:
  const MemberId self_;
  const std::vector<std::byte> job_key_;
  const Duration patience_;
  PeerArenas& arenas_;
  const Run run_;
  std::map<MemberId, double> rates_;
  std::map<MemberId, std::uint64_t> asked_;  // the number of the last time
  std::uint64_t last_asked_ = 0;
  std::unique_ptr<TaskThread> thread_ = std::make_unique<TaskThread>("mapper");
};

}  // namespace lockstep::worker
