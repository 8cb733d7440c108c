// What the server of an arena says last, after the handshake (transport/handshake.h): the message
// that carries the file descriptor, and those of the device's memory where the blocks lie there, as
// far as that was made. Who needs a block that was made later asks again.
// Messages keep their boundaries, as the sockets are SOCK_SEQPACKET.
#pragma once

#include <array>
#include <cstdint>

#include "transport/mapping/device_sharing.h"
#include "transport/mapping/exported_blocks.h"
#include "transport/mapping/layout.h"

namespace lockstep::transport {

struct ArenaGrant {
  static constexpr std::uint64_t kMagic = 0x544e4152474b4c33;  // "3LKGRANT"
  std::uint64_t magic = 0;
  ArenaNonce
      nonce{};  // read back through the mapping, it proves that this is the memory that was meant
  DeviceName device;  // where the blocks lie
  // On a device: of each block, how much memory it has there, and so whether there is a descriptor
  // of it, which come in this order behind the arena's own; 0: none yet.
  std::array<std::uint64_t, kMaxDeviceBlocks> block_bytes{};
};
static_assert(sizeof(ArenaGrant) == 344);

}  // namespace lockstep::transport
