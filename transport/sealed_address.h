// An address of a transport whose bytes a library of others takes apart, and trusts: sealed with
// the job's key, so that none reaches that library that a member of the job has not made. No I/O.
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

// Text without blanks: base64 of HMAC-SHA256(job key, label || address) and the address, of at most
// kMaxSealedBytes.
std::string SealAddress(std::span<const std::byte> job_key, std::span<const std::byte> address);

// The address. kInvalid for a text that is none; kRefused where the job's key did not seal it.
Result<std::vector<std::byte>> OpenAddress(std::span<const std::byte> job_key,
                                           std::string_view sealed);

}  // namespace lockstep::transport
