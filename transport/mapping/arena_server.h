// Hands a worker's arena to the peers of its job. Each peer that connects to address() and proves
// the job key in a handshake gets the file descriptor, once per connection, and maps it
// (map_peer.h).
//
// It has one thread of its own, which also serves while the worker's other threads are busy.
// Processes of other users (but root) are refused before their first message. Strangers cost
// little: beside as many connections as the job has members, at most max_pending without proof are
// open, each for at most handshake_timeout. When more come, one gives way (transport/places.h; each
// process counts as an address). The number of peers that are served has no bound.
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "base/result.h"
#include "base/time.h"
#include "transport/mapping/arena.h"
#include "transport/transport.h"

namespace lockstep::transport {

struct ArenaServerOptions {
  MemberId self;
  std::size_t max_pending = 64;
  std::size_t members = 0;  // of the job: all may come at once
  Duration handshake_timeout = std::chrono::seconds(5);
};

class ArenaServer {
 public:
  // The arena may be moved or destroyed while the server lives. kUnavailable where no socket or
  // thread is available.
  static Result<std::unique_ptr<ArenaServer>> Start(const Arena& arena,
                                                    std::span<const std::byte> job_key,
                                                    const ArenaServerOptions& options);
  virtual ~ArenaServer() = default;  // ends the thread; peers keep what they have mapped

  // The printable address, which a peer passes to MapPeer.
  virtual const std::string& address() const = 0;
};

}  // namespace lockstep::transport
