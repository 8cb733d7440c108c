// Each reads the bytes as a file of its format. They return whether the file was accepted; what is
// accepted must be consistent, or the process ends.
#pragma once

#include <cstdint>
#include <span>

namespace lockstep::fuzz {

bool idx(std::span<const std::uint8_t> bytes);
bool cifar10(std::span<const std::uint8_t> bytes);
// As idx, through the file system and zlib.
bool gzip(std::span<const std::uint8_t> bytes);
bool safetensors(std::span<const std::uint8_t> bytes);
// Lines of slow-downs, and the bytes as the file of a trace.
bool slowdown(std::span<const std::uint8_t> bytes);

}  // namespace lockstep::fuzz
