// Transports of one process, joined in memory, with faults on request. They are for tests: the same
// contract as between processes, a data thread for each transport, and the same handshake.
#pragma once

#include <memory>

#include "base/ids.h"
#include "base/time.h"
#include "transport/transport.h"

namespace lockstep::transport {

// Joins the transports of one test. Any thread may set faults, by worker (all incarnations); they
// hold for later sends.
class InprocNetwork {
 public:
  static std::shared_ptr<InprocNetwork> Make();
  virtual ~InprocNetwork() = default;

  virtual std::unique_ptr<Transport> MakeTransport(Options options) = 0;

  // The delay of a small message (also of a fetch and its refusal), or of the body of a piece.
  virtual void DelayMessages(WorkerId from, WorkerId to, Duration delay) = 0;
  virtual void DelayBodies(WorkerId from, WorkerId to, Duration delay) = 0;
  // Acts as a cut cable: both ends see their peer go down. New connections are not hindered.
  virtual void DropConnections(WorkerId a, WorkerId b) = 0;
  // Acts as SIGSTOP: its data thread runs nothing until stalled is false, or until Stop.
  virtual void Stall(WorkerId worker, bool stalled) = 0;
  // Send returns false, as with a full queue.
  virtual void RefuseSends(WorkerId from, WorkerId to, bool refuse) = 0;
};

}  // namespace lockstep::transport
