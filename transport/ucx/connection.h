// The state of one connection. It has no logic: the engine moves it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <unordered_set>
#include <vector>

#include "base/result.h"
#include "base/time.h"
#include "transport/handshake.h"
#include "transport/transport.h"
#include "transport/ucx/endpoint.h"

namespace lockstep::transport::ucx {

struct Connection {
  enum class State : std::uint8_t {
    kHandshaking,
    kRefused,  // the proof failed; the other end is being told, and `reason` is why
    kUp,
    kClosing,  // no traffic any more; waits until UCX lets go, and `reason` is why
  };

  Connection(PeerId peer, std::uint64_t number, std::optional<MemberId> whom, Handshake::Role role,
             const Options& options)
      : id(peer),
        local(number),
        wanted(whom),
        handshake(role, options.self, options.job_key, whom) {}

  const PeerId id;
  const std::uint64_t local;  // the number by which the other end names this connection
  std::uint64_t remote = 0;   // the other end's number for it; 0: not heard yet
  const std::optional<MemberId>
      wanted;  // the connecting end: the wanted member; the accepting end: nullopt
  std::unique_ptr<Endpoint> endpoint;
  Handshake handshake;
  State state = State::kHandshaking;
  bool was_up = false;
  Error reason;
  bool broken = false;  // UCX has reported that nothing reaches the other end any more
  Time begun;           // when its endpoint was made
  bool heard = false;   // something has come from the other end
  // The end of kClosing. With kAddresses the endpoint stays at most until then, so that the other
  // end can be told; with kListener, until UCX has made the connection.
  std::optional<Time> kept_until;
  Time kept_at_most;  // kAddresses: the limit, however much of the traffic under way gets through
                      // meanwhile

  std::size_t operations = 0;    // operations that UCX works on
  std::size_t queued_bytes = 0;  // of small messages, see Options::send_queue_bytes
  std::size_t replies = 0;       // pieces and refusals that UCX works on
  std::uint32_t next_sent = 0;   // sequence numbers of messages
  std::uint32_t next_received = 0;
  bool pinging = false;     // UCX works on a ping
  std::size_t fetches = 0;  // outstanding
  // Fetches of the peer whose answer comes later; together with `replies` at most as many as it may
  // have.
  struct Deferred {
    std::uint64_t fetch = 0;
    std::uint64_t cookie = 0;
    std::uint64_t bytes = 0;
  };
  std::vector<Deferred> deferred;
  std::unordered_set<FetchId> abandoned;  // given up, and the answer is still to come
};

}  // namespace lockstep::transport::ucx
