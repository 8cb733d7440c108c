// The data thread of a worker: it runs the core and carries out its actions over the
// transport, the mapping and the reduction thread.
//
// Decides nothing: an event goes in, and what the core answers is done, in order. In: what the
// coordinator says (Post), what peers say and ask (TransportSet), what operations, mappings and
// timers come to. Out: messages, fetches, served pieces, operations for the reduction thread, work
// for the compute queue.
//
// The core lives on the data thread of one of the transports, the job's once that is settled
// (action::UseTransport moves it there). Everything else posts to it.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/job_config.h"
#include "base/messages.h"
#include "base/result.h"
#include "transport/network_thread.h"
#include "transport/paths/choice.h"
#include "transport/paths/judge.h"
#include "worker/core/step_machine.h"
#include "worker/optimizer/optimizer.h"
#include "worker/runtime/compute_queue.h"
#include "worker/runtime/crew.h"
#include "worker/runtime/round_times.h"
#include "worker/runtime/worker_buffers.h"

namespace lockstep::worker {

class DataPlane {
 public:
  struct Setup {
    MachineConfig core;
    std::vector<std::byte> job_key;
    std::string data_host;                              // to listen on
    std::vector<transport::paths::Choice> transports;   // to open and to offer
    bool encryption = false;                            // exchange.encryption
    std::uint64_t seed = 0;                             // of the job
    std::optional<std::uint64_t> rounding_seed;         // with exchange.rounding = stochastic
    std::size_t connections = 1;                        // exchange.connections
    std::size_t members = 0;                            // of the job, see transport::Options
    std::shared_ptr<transport::NetworkThread> network;  // of the connection to the coordinator
    CrewSize::Setup threads;                            // of sums and updates
    Timeouts timeouts;
    transport::paths::Facts paths;
    std::string no_arena;            // why this worker has none for its peers; empty: it has
    bool require_gpudirect = false;  // unfit() where a peer on another host is reached otherwise
    std::function<void(std::span<float>)> initialize;
    // Any of these may run on the data thread.
    std::function<void(msg::FromWorker, std::function<void()> sent)> to_coordinator;
    std::function<void(const std::string& specs)> slowdown;
    std::function<void(const std::string& reason)> unfit;
    RoundClock::Report round_times;  // null: nobody measures
    // Null: nothing is saved beside checkpoints. One is made of the state after that round; the
    // parameters come from that of a round.
    std::function<void(RoundId)> checkpoint_due;
    std::function<void(RoundId)> started_from;
  };

  // Starts what transports there are; kUnavailable when there is none at all.
  static Result<std::unique_ptr<DataPlane>> Start(Setup setup, const Layout& layout,
                                                  WorkerBuffers& buffers,
                                                  const Optimizer& optimizer,
                                                  ComputeQueue& compute);
  virtual ~DataPlane() = default;  // ends the connections and the threads

  virtual const std::vector<TransportOffer>& offers() const = 0;
  virtual const std::string& mapping_address() const = 0;

  // An event for the core. Any thread. Spans inside must stay valid until it was taken in: only
  // events without spans, or FromCoordinator, whose message is owned.
  virtual void Post(Event event) = 0;
  // A run that has ended its part: the core hears of both in one turn, so that what it says of them
  // goes out together.
  virtual void PostEndOfPart(event::RunDone run, event::PartSealed part) = 0;
  // The compute thread, when it has made the update that the compute queue gave it.
  virtual void EndUpdate(const ProgramUpdate& update) = 0;
};

}  // namespace lockstep::worker
