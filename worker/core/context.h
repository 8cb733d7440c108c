// The parts of the worker's core share this within one Step: time, settings, and where actions go.
#pragma once

#include <string>
#include <utility>

#include "worker/core/peer_messages.h"
#include "worker/core/step_io.h"
#include "worker/core/step_machine.h"
#include "worker/layout/layout.h"

namespace lockstep::worker {

// Every part holds a reference to it. Actions are appended in the order in which they are decided,
// and carried out in that order after the step. A part that says two things can rely on it, as
// OpenBlock before anything is written to the block.
//
// Operations, generations and fetches have numbers that are never used again in the core's life, so
// what is reported late is known for what it is.
struct Context {
  Context(MachineConfig c, Layout l) : config(std::move(c)), layout(std::move(l)) {
    for (std::uint32_t s = 0; s < config.shards; ++s) {
      shards.push_back(layout.EqualShard(s, config.shards));
    }
  }

  void Emit(Action action) { actions.push_back(std::move(action)); }
  void Tell(msg::FromWorker message) { Emit(action::ToCoordinator{std::move(message)}); }
  void Say(const MemberId& peer, const PeerMessage& message,
           std::vector<BufferRange> payload = {}) {
    Emit(action::ToPeer{peer, EncodePeerMessage(message), std::move(payload)});
  }
  void Log(std::string line) { Emit(action::Log{std::move(line)}); }
  std::uint64_t NewOp() { return next_op++; }
  std::uint32_t NewGeneration() { return next_generation++; }

  const MachineConfig config;
  const Layout layout;
  std::vector<std::vector<Slice>> shards;  // that have holders (MachineConfig::shards)
  Time now;
  Actions actions;
  std::uint64_t next_op = 1;
  // Of a block's use, and the tag of contributions; grows through the core's life.
  std::uint32_t next_generation = config.first_generation;
  bool told_of_torn_sum = false;
};

// Name of a member in log lines and errors.
inline std::string Name(const MemberId& m) {
  return fmt::format("worker {}.{}", m.worker, m.incarnation);
}

}  // namespace lockstep::worker
