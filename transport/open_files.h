// The number of files, sockets among them, that this process may have open.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/result.h"

namespace lockstep::transport {

// Raises the limit to `wanted` where it is lower, as far as the hard limit allows. Returns the
// number that is allowed then.
Result<std::uint64_t> AllowOpenFiles(std::uint64_t wanted);

// The most unproven connections of a listening socket: `most`, or an eighth of the files that are
// allowed now where that is less. So strangers never take the files that the job itself opens. The
// result is at least 8.
std::size_t PlacesForStrangers(std::size_t most);

}  // namespace lockstep::transport
