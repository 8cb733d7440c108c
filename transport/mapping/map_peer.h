// Gets at a peer's arena: connects to its server, exchanges proofs of the job key, receives and
// maps the memory.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "base/result.h"
#include "base/time.h"
#include "transport/mapping/peer_arena.h"
#include "transport/transport.h"

namespace lockstep::transport {

// Blocks for at most `timeout`, so not for a data thread. `address` is ArenaServer::address() of
// `owner`. `device`: whose memory the arena's blocks are to lie in, and which is to read them;
// null: the host's. Errors, each one line that names the owner:
//   kInvalid      not an address, or what came is no proper arena
//   kUnavailable  another host or another network namespace, no memory to map it, or the blocks lie
//                 in memory that `device` does not reach
//   kNotFound     nobody listens there (any more)
//   kRefused      another job key, or not the owner that was meant
//   kTimeout      the owner is stopped or busy
//   kClosed       it hung up
Result<PeerArena> MapPeer(const std::string& address, const MemberId& self, const MemberId& owner,
                          std::span<const std::byte> job_key, Duration timeout,
                          DeviceSharing* device = nullptr);

}  // namespace lockstep::transport
