// Hands a worker's arena to the peers of its job: each that connects to address() and proves the
// job key in a handshake gets the file descriptor, once per connection, and maps it (map_peer.h).
//
// One thread of its own, which also serves while the worker's other threads are busy. Processes of
// other users (but root) are sent away unheard. Strangers cost little: at most max_pending
// connections that have not proven themselves are open beside as many as the job has members, each
// for at most handshake_timeout; when more come, one gives way (transport/places.h; each process
// counts as an address). There is no bound on how many peers are served.
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
  // thread is to be had.
  static Result<std::unique_ptr<ArenaServer>> Start(const Arena& arena,
                                                    std::span<const std::byte> job_key,
                                                    const ArenaServerOptions& options);
  virtual ~ArenaServer() = default;  // ends the thread; peers keep what they have mapped

  // Printable; what a peer passes to MapPeer.
  virtual const std::string& address() const = 0;
};

}  // namespace lockstep::transport
