// How many files, sockets among them, this process may have open.
#pragma once

#include <cstdint>

#include "base/result.h"

namespace lockstep::transport {

// Raises the limit to `wanted` where it is lower, as far as the hard limit lets it. Returns how
// many are allowed then.
Result<std::uint64_t> AllowOpenFiles(std::uint64_t wanted);

}  // namespace lockstep::transport
