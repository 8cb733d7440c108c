// What the server of an arena says last, after the handshake (transport/handshake.h): the message
// that carries the file descriptor, and that of the device's memory where the blocks lie there.
// Messages keep their boundaries, as the sockets are SOCK_SEQPACKET.
#pragma once

#include <cstdint>

#include "transport/mapping/device_sharing.h"
#include "transport/mapping/layout.h"

namespace lockstep::transport {

struct ArenaGrant {
  static constexpr std::uint64_t kMagic = 0x544e4152474b4c32;  // "2LKGRANT"
  std::uint64_t magic = 0;
  ArenaNonce
      nonce{};  // read back through the mapping, it proves that this is the memory that was meant
  DeviceName device;  // where the blocks lie
};
static_assert(sizeof(ArenaGrant) == 88);

}  // namespace lockstep::transport
