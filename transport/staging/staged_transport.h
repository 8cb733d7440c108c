// Gives a transport that takes only the host's memory the memory of a device. Its pieces go through
// rings of pinned buffers, so that the copies of some overlap with the sending of others. The wire
// is the inner transport's, so a peer may stage or not.
//
// Each peer has kServeBuffers for the pieces that it is served, and a window of them for the
// fetches from it, each of the size of a piece. A peer that does not read pins only its own. They
// are made when a peer connects and used again by the next ones, so
//
//   pinned memory = (kServeBuffers + fetch_window) * piece_bytes * (peers up at once, at most)
//
// A peer's fetch waits for a free buffer.
#pragma once

#include <cstddef>
#include <memory>

#include "transport/staging/device_copies.h"
#include "transport/transport.h"

namespace lockstep::transport {

inline constexpr std::size_t kServeBuffers = 4;

// `inner` must not be started yet. `copies` outlives the result. Peers are served pieces of at most
// `piece_bytes` out of a device's memory; a peer that asks for more is closed.
std::unique_ptr<Transport> MakeStagedTransport(std::unique_ptr<Transport> inner,
                                               DeviceCopies& copies, std::size_t piece_bytes);

}  // namespace lockstep::transport
