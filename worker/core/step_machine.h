// The worker's side of a round as a pure core: Step(now, event) -> actions. It decides what is
// computed, fetched, reduced, applied and said; it does no I/O, reads no clock and starts no
// thread. It lives on the transport's data thread. step_io.h says what the events and actions mean,
// docs/reference/protocol.md how a round goes.
//
// Nothing is written to a buffer that is served, fetched into or read by an operation. The core
// counts those uses and takes a buffer again only when they have ended. Where a peer that does not
// read keeps a buffer pinned and no other is free, its connection is closed.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "worker/core/step_io.h"
#include "worker/core/unit_queue.h"

namespace lockstep::worker {

// Of a round, as job.units and plans have them: all may come to one worker.
inline constexpr std::uint32_t kMostUnits = 65536;

struct MachineConfig {
  MemberId self;
  Term term;
  std::string host_id;
  bool reattaches = false;                 // job.coordinator_timeout: a lost coordinator is no end
  std::optional<HeldParameters> held;      // what this worker has said that it holds (Ready)
  std::vector<std::uint32_t> held_shards;  // with shards: of these, ascending
  bool held_whole = true;                  // the parameters of all others are here as well
  // Blocks that this worker's arena had for another core have generations below it (I4).
  std::uint32_t first_generation = 1;
  bool epoch_ends = false;          // the program is shown the parameters at the end of each epoch
  EpochsSeen epochs_seen;           // of another core
  bool takes_costs = false;         // the coordinator does (msg::Costs)
  bool mapping = true;              // exchange.mapping = auto and this worker has an arena
  std::uint32_t state_tensors = 0;  // of the optimizer, each as long as the parameters
  std::uint32_t shards = 0;         // of the job, that have holders (optimizer.replicas); 0:
                                    // everybody holds everything
  bool sums_apart = true;           // what others have summed lies in buffers of its own,
                                    // which are given back when the round is closed
  double clip = 0;                  // optimizer.clip
  std::uint64_t piece_bytes = 1u << 20;    // of one fetch
  std::uint32_t fetch_window = 8;          // fetches under way from one peer
  std::uint64_t inline_bytes = 32u << 10;  // payload that may ride on a small message; 0: none
  // All that may ride to an owner of one part: what nobody has asked for knows no back-pressure.
  std::uint64_t part_inline_bytes = 256u << 10;
  std::uint64_t chunk_bytes = 1u << 20;  // of a checkpoint's StateChunk
  std::uint32_t chunks_in_flight = 4;
  std::uint32_t evaluation_chunk = 256;  // test samples between two looks for better work
  std::uint32_t queue_capacity = 4096;   // units given to this worker in one round
  RunBound run_bound;                    // of what it computes at once
  double most_run_cost = 0;              // the same by costs (JobDescription); 0: no bound
  std::vector<std::string> transports;   // that this worker offered; empty: whatever comes
  // The bounds of what the coordinator may name: positions of the training and test set, samples of
  // one unit.
  std::uint64_t train_samples = std::numeric_limits<std::uint32_t>::max();
  std::uint64_t test_samples = std::numeric_limits<std::uint32_t>::max();
  std::uint64_t unit_samples = std::numeric_limits<std::uint32_t>::max();
  Duration progress_interval = std::chrono::seconds(1);   // while a unit is long
  Duration formation_timeout = std::chrono::seconds(20);  // then who did not come is not reached
  Duration peer_silence = std::chrono::seconds(15);       // of a peer, then it cannot be reached
  Duration finish_timeout = std::chrono::seconds(10);     // for the last sums, once the job ends
};

// How long a worker waits, out of the one time-out. Connecting and mapping follow each other, and
// both end before the coordinator's patience with a formation, three times the time-out, does.
struct Timeouts {
  Duration connect{};    // a data connection, handshake included
  Duration map{};        // a peer's arena
  Duration formation{};  // then who did not come is not reached
  Duration fetch{};      // with a peer that answers no fetch
  Duration silence{};    // of a peer: longer than the coordinator's patience with whoever stopped
  // With a host that acknowledges nothing, so that TCP ends what nobody listens to any more.
  Duration unacknowledged{};
};
constexpr Timeouts TimeoutsFrom(Duration liveness_timeout) {
  return {.connect = liveness_timeout,
          .map = liveness_timeout / 2,
          .formation = 2 * liveness_timeout,
          .fetch = liveness_timeout,
          .silence = liveness_timeout * 3 / 2,
          .unacknowledged = 2 * liveness_timeout};
}

class StepMachine {
 public:
  StepMachine(MachineConfig config, Layout layout);
  ~StepMachine();
  StepMachine(StepMachine&&) noexcept;
  StepMachine& operator=(StepMachine&&) noexcept;

  // Time never goes back. The actions are to be carried out, in order, before the next Step. The
  // coordinator and peers may say anything that their decoders let through. A coordinator that
  // breaks the protocol ends in action::Exit, a peer that does in action::ClosePeer.
  Actions Step(Time now, const Event& event);

  // A peer asks for a piece: what may be served. The piece that was answered is pinned until
  // event::Served with its cookie. To be asked between steps, when the actions of the last have
  // been carried out.
  Serve OnPieceAsked(const MemberId& peer, const PieceName& piece);

  // The units of the open round. The compute thread may call what the queue lists for it, and
  // nothing else.
  UnitQueue& queue();
  const Layout& layout() const;

  // For status and tests.
  struct View {
    bool started = false;
    bool level = false;             // the parameters are those after round next - 1
    RoundId next;                   // first round that is not applied
    std::optional<Attempt> newest;  // of the round before, while level; none: the start's state
    bool computing = false;
    std::size_t fetches = 0;  // under way
    std::size_t queued = 0;   // fetches that wait for their window
    std::size_t pins = 0;     // served pieces that are not yet sent
    std::size_t peers = 0;    // that something is known of
    std::size_t heard = 0;    // what peers said of their sums, and is kept
    bool exited = false;
    std::string waiting_for;  // for people
  };
  View view() const;

  // Ends the process when something does not hold that always holds between two steps. The cheap
  // part is looked at by each Step itself; all of it takes time that grows with peers and buckets.
  void CheckInvariants() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep::worker
