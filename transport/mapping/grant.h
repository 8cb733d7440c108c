// The last message of an arena's server, after the handshake (transport/handshake.h). It carries
// the file descriptor and, where the blocks lie in the device's memory, those of the blocks that
// have memory. A peer that needs a block that was made later asks again. Messages keep their
// boundaries, as the sockets are SOCK_SEQPACKET.
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
  ArenaNonce nonce{};  // read back through the mapping, it proves that this is the intended memory
  DeviceName device;   // where the blocks lie
  // On a device: the memory of each block there; 0: none yet. The descriptors of the others follow
  // the arena's own, in this order.
  std::array<std::uint64_t, kMaxDeviceBlocks> block_bytes{};
};
static_assert(sizeof(ArenaGrant) == 344);

}  // namespace lockstep::transport
