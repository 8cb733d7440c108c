// Words of the exchange that the worker's pure core and the layers below it share. They name the
// requested piece, the end of the request, and the part of a round's work.
#pragma once

#include <compare>
#include <cstdint>

#include "base/ids.h"

namespace lockstep {

// Names a piece to the peer that serves it. Opaque to the transport; the exchange gives it its
// meaning (worker/core/peer_messages.h).
struct PieceName {
  std::uint32_t kind = 0;
  std::uint32_t attempt = 0;
  std::uint64_t round = 0;
  std::uint32_t owner = 0;
  std::uint32_t part = 0;
  std::uint64_t offset = 0;  // bytes
  std::uint64_t bytes = 0;   // length; a serve of any other length is a protocol error
  auto operator<=>(const PieceName&) const = default;
};

// A part that a worker has sealed, of the work with this number.
struct SealedPart {
  std::uint32_t work = 0;
  PartIndex part;
  bool operator==(const SealedPart&) const = default;
};

enum class FetchStatus : std::uint8_t {
  kOk,
  kGone,      // the peer does not have the piece (any more, or not yet)
  kGivenUp,   // it was given up before the bytes were complete; the destination is free again now
  kPeerDown,  // the connection ended
};

}  // namespace lockstep
