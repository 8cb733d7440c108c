// An address of a transport whose library parses and trusts its bytes. It is sealed with the job's
// key, so that the library gets only addresses that a member of the job has made. It does no I/O.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace lockstep::transport {

// Longer addresses are refused unread; as text they fit where the control plane carries addresses.
inline constexpr std::size_t kMaxSealedBytes = 8192;

// Returns text without blanks: base64 of HMAC-SHA256(job key, label || address) and the address, of
// at most kMaxSealedBytes.
std::string SealAddress(std::span<const std::byte> job_key, std::span<const std::byte> address);

// Returns the address. kInvalid for a text that is no sealed address; kRefused where the job's key
// did not seal it.
Result<std::vector<std::byte>> OpenAddress(std::span<const std::byte> job_key,
                                           std::string_view sealed);

}  // namespace lockstep::transport
