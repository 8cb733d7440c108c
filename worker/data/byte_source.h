// Bytes in order, from a file (gzip-ed or not) or from memory: what the readers of data formats
// read from.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "base/result.h"

namespace lockstep::worker {

class ByteSource {
 public:
  virtual ~ByteSource() = default;
  // Fills `out` unless the source ends before; returns how many bytes it wrote. An error for bytes
  // that cannot be had: a broken gzip stream, a read error.
  virtual Result<std::size_t> Read(std::span<std::uint8_t> out) = 0;
  // For error messages.
  virtual const std::string& name() const = 0;
};

// A file as it is, or unpacked when it starts as gzip does.
Result<std::unique_ptr<ByteSource>> OpenFile(const std::string& path);
// `bytes` outlive the source.
std::unique_ptr<ByteSource> FromMemory(std::string name, std::span<const std::uint8_t> bytes);

}  // namespace lockstep::worker
