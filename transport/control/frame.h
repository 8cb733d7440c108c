// Frames on a byte stream: four bytes of length, big-endian, and as many bytes. Internal.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/result.h"

namespace lockstep::transport::control {

inline constexpr std::size_t kFrameHeaderBytes = 4;

// `payload` with its length in front.
std::string FrameOf(std::string_view payload);

// Cuts the received bytes into frames. It checks a length before it makes room for it, and makes
// room only for bytes that have arrived.
class FrameReader {
 public:
  explicit FrameReader(std::size_t max_bytes) : max_bytes_(max_bytes) {}

  void set_max_bytes(std::size_t max_bytes) { max_bytes_ = max_bytes; }
  void Append(std::span<const std::byte> bytes);
  // The next whole frame, valid until the next call; nullopt: more bytes are needed. kInvalid: the
  // bytes are no frame of ours.
  Result<std::optional<std::span<const std::byte>>> Next();

 private:
  std::size_t max_bytes_;
  std::string buffer_;
  std::size_t taken_ = 0;  // of buffer_
};

}  // namespace lockstep::transport::control
