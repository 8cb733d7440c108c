// Transports of one process, joined in memory, with faults on request. For tests: the same contract
// as between processes, each transport with a data thread of its own, and the same handshake.
#pragma once

#include <memory>

#include "base/ids.h"
#include "base/time.h"
#include "transport/transport.h"

namespace lockstep::transport {

// What the transports of one test are joined by. Faults are set from any thread, by worker (all
// incarnations), and hold for what is sent after.
class InprocNetwork {
 public:
  static std::shared_ptr<InprocNetwork> Make();
  virtual ~InprocNetwork() = default;

  virtual std::unique_ptr<Transport> MakeTransport(Options options) = 0;

  // How long a small message (and what fetches and their refusals say), or the body of a piece, is
  // under way.
  virtual void DelayMessages(WorkerId from, WorkerId to, Duration delay) = 0;
  virtual void DelayBodies(WorkerId from, WorkerId to, Duration delay) = 0;
  // As if the cable were cut: both ends see their peer go down. New connections are not hindered.
  virtual void DropConnections(WorkerId a, WorkerId b) = 0;
  // As SIGSTOP would: its data thread runs nothing until stalled is false, or until Stop.
  virtual void Stall(WorkerId worker, bool stalled) = 0;
  // Send returns false, as with a full queue.
  virtual void RefuseSends(WorkerId from, WorkerId to, bool refuse) = 0;
};

}  // namespace lockstep::transport
