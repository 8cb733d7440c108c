// How many files, sockets among them, this process may have open.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/result.h"

namespace lockstep::transport {

// Raises the limit to `wanted` where it is lower, as far as the hard limit lets it. Returns how
// many are allowed then.
Result<std::uint64_t> AllowOpenFiles(std::uint64_t wanted);

// How many connections a listening socket may hold that have proven nothing: `most`, or an eighth
// of the files that are allowed now where that is less, so that strangers never take the files that
// the job itself opens. At least 8.
std::size_t PlacesForStrangers(std::size_t most);

}  // namespace lockstep::transport
