// What the parts of the step machine share within one Step: time, settings, and where actions go.
#pragma once

#include <string>
#include <utility>

#include "worker/core/layout.h"
#include "worker/core/peer_messages.h"
#include "worker/core/step_io.h"
#include "worker/core/step_machine.h"

namespace lockstep::worker {

struct Context {
  Context(MachineConfig c, Layout l) : config(std::move(c)), layout(std::move(l)) {}

  void Emit(Action action) { actions.push_back(std::move(action)); }
  void Tell(FromWorker message) { Emit(action::ToCoordinator{std::move(message)}); }
  void Say(const MemberId& peer, const PeerMessage& message,
           std::vector<BufferRange> payload = {}) {
    Emit(action::ToPeer{peer, EncodePeerMessage(message), std::move(payload)});
  }
  void Log(std::string line) { Emit(action::Log{std::move(line)}); }
  std::uint64_t NewOp() { return next_op++; }
  std::uint32_t NewGeneration() { return next_generation++; }

  const MachineConfig config;
  const Layout layout;
  Time now;
  Actions actions;
  std::uint64_t next_op = 1;
  // Of a block's use, and the tag of contributions; grows through the machine's life.
  std::uint32_t next_generation = 1;
};

// Name of a member in log lines and errors.
inline std::string Name(const MemberId& m) {
  return fmt::format("worker {}.{}", m.worker, m.incarnation);
}

}  // namespace lockstep::worker
