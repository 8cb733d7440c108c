// What the server of an arena says last, after the handshake (transport/handshake.h): the message
// that carries the file descriptor. Messages keep their boundaries, as the sockets are
// SOCK_SEQPACKET.
#pragma once

#include <cstdint>

#include "transport/mapping/layout.h"

namespace lockstep::transport {

struct ArenaGrant {
  static constexpr std::uint64_t kMagic = 0x544e4152474b4c31;  // "1LKGRANT"
  std::uint64_t magic = 0;
  ArenaNonce
      nonce{};  // read back through the mapping, it proves that this is the memory that was meant
};
static_assert(sizeof(ArenaGrant) == 24);

}  // namespace lockstep::transport
