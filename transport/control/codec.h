// Control messages to bytes and back (lockstep.proto). Every received message is checked: a decoded
// message keeps the promises of base/messages.h about ranges, orders and counts, so that later code
// need not check them.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "base/messages.h"
#include "base/result.h"

namespace lockstep::transport::control {

// The accepted bounds. Encode cuts texts for people to kMaxTextBytes.
inline constexpr std::size_t kMaxTextBytes = 4096;
inline constexpr std::size_t kMaxSettingsBytes = 16384;
inline constexpr std::size_t kMaxAddressBytes = 16384;
inline constexpr std::size_t kMaxConfigBytes = 1u << 20;
inline constexpr std::size_t kMaxChunkBytes = 4u << 20;
inline constexpr std::size_t kMaxMembers = 16384;
inline constexpr std::size_t kMaxUnits = 65536;  // of a round
inline constexpr std::size_t kMaxTransports = 16;
inline constexpr std::size_t kMaxTensors = 65536;
inline constexpr std::size_t kMaxDimensions = 8;
inline constexpr std::size_t kJobKeyBytes = 32;

std::string Encode(const msg::ToWorker& message);
std::string Encode(const msg::FromWorker& message);

// Returns kInvalid for bytes that are no message, or for a message with impossible values; the
// error names the message and the cause. Losses may be infinite or not a number (training that
// diverges is no error of the protocol); all other numbers are finite.
Result<msg::ToWorker> DecodeToWorker(std::span<const std::byte> bytes);
Result<msg::FromWorker> DecodeFromWorker(std::span<const std::byte> bytes);

}  // namespace lockstep::transport::control
