// Maps a peer's arena: connects to its server, exchanges proofs of the job key, receives and maps
// the memory.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "base/result.h"
#include "base/time.h"
#include "transport/mapping/peer_arena.h"
#include "transport/transport.h"

namespace lockstep::transport {

// It blocks for at most `timeout`, so do not call it on a data thread. `address` is
// ArenaServer::address() of `owner`. `device`: its memory must hold the arena's blocks, and it
// reads them; null: the host's. Each error is one line that names the owner:
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
