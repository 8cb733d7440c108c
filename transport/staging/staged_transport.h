// Gives a transport that takes the host's memory only the memory of a device: its pieces go through
// rings of pinned buffers, so that the copies of some overlap with the sending of others. The wire
// is the inner transport's, so a peer may stage or not.
//
// For each peer there are kServeBuffers for what it is served and a window of them for what is
// fetched from it, of the size of a piece each: one that does not read pins its own and nobody
// else's. They are made when a peer connects and used again by the next ones, so
//
//   pinned memory = (kServeBuffers + fetch_window) * piece_bytes * (peers up at once, at most)
//
// What a peer asks for waits for a free buffer.
#pragma once

#include <cstddef>
#include <memory>

#include "transport/staging/device_copies.h"
#include "transport/transport.h"

namespace lockstep::transport {

inline constexpr std::size_t kServeBuffers = 4;

// `inner` has not been started. `copies` outlives what is returned. Peers are served pieces of at
// most `piece_bytes` out of a device's memory; one that asks for more is closed.
std::unique_ptr<Transport> MakeStagedTransport(std::unique_ptr<Transport> inner,
                                               DeviceCopies& copies, std::size_t piece_bytes);

}  // namespace lockstep::transport
