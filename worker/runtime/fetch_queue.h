// Between the core's fetches and those of one transport. The core keeps to its window, but a
// transport may refuse for a while still. A fetch that was given up is unanswered until the peer
// has answered it, and there is a bound on unanswered ones. A refused fetch waits here and is tried
// again when something of that peer has completed, and every few milliseconds. A peer that answers
// nothing for the whole patience while fetches wait is closed.
//
// At most the core's window of fetches waits for each peer. The transport's data thread.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>

#include "base/time.h"
#include "transport/transport.h"
#include "worker/core/step_io.h"

namespace lockstep::worker {

class FetchQueue {
 public:
  // Gets what becomes of each fetch, once; never from within Fetch or GiveUp.
  using Report = std::function<void(std::uint64_t fetch, FetchStatus status)>;

  FetchQueue(transport::Transport& transport, Duration patience, Report report)
      : transport_(transport), patience_(patience), report_(std::move(report)) {}

  void Fetch(transport::PeerId peer, std::uint64_t number, const PieceName& name,
             const transport::Slice& to);
  // To a peer that is down.
  void Refuse(std::uint64_t number) { ReportLater(number, FetchStatus::kPeerDown); }
  void GiveUp(std::uint64_t number);

  // A fetch that is none of the core's: false.
  bool OnFetchDone(transport::FetchId fetch, FetchStatus status);
  void OnPeerDown(transport::PeerId peer);

  std::size_t waiting(transport::PeerId peer) const;

 private:
  struct Waiting {
    std::uint64_t number = 0;
    PieceName name;
    transport::Slice to;
  };
  struct Queue {
    std::deque<Waiting> waiting;
    std::uint64_t id = 0;
    Time moved;  // when something of the peer completed last, or waiting began
  };
  struct UnderWay {
    std::uint64_t number = 0;
    transport::PeerId peer;
  };
  // False: it has to wait.
  bool TryNow(transport::PeerId peer, const Waiting& fetch);
  void TryWaiting(transport::PeerId peer);
  void LookAgain(transport::PeerId peer, std::uint64_t queue_id, Duration pause);
  void ReportLater(std::uint64_t number, FetchStatus status);

  transport::Transport& transport_;
  const Duration patience_;
  const Report report_;
  std::map<transport::FetchId, UnderWay> under_way_;
  std::map<std::uint64_t, transport::FetchId> by_number_;
  std::map<transport::PeerId, Queue> queues_;  // only where something waits
  std::uint64_t last_queue_ = 0;
};

}  // namespace lockstep::worker
