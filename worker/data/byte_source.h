// Bytes in order, from a file (gzip-ed or not) or from memory, for the readers of data formats.
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
  // Fills `out` unless the source ends before; returns the number of bytes written. It returns an
  // error for unreadable bytes: a broken gzip stream, a read error.
  virtual Result<std::size_t> Read(std::span<std::uint8_t> out) = 0;
  // The name is for error messages.
  virtual const std::string& name() const = 0;
};

// Opens a file, and unpacks it when it starts with gzip's header.
Result<std::unique_ptr<ByteSource>> OpenFile(const std::string& path);
// `bytes` outlives the source.
std::unique_ptr<ByteSource> FromMemory(std::string name, std::span<const std::uint8_t> bytes);

}  // namespace lockstep::worker
