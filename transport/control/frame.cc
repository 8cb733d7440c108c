#include "transport/control/frame.h"

#include <fmt/format.h>

#include "base/ini.h"

namespace lockstep::transport::control {
namespace {

// A buffer that grew for a large message is freed after it.
constexpr std::size_t kKeptBytes = 1u << 16;

std::uint32_t LengthAt(std::string_view bytes) {
  std::uint32_t length = 0;
  for (std::size_t i = 0; i < kFrameHeaderBytes; ++i) {
    length = (length << 8) | static_cast<unsigned char>(bytes[i]);
  }
  return length;
}

}  // namespace

std::string FrameOf(std::string_view payload) {
  LOCKSTEP_CHECK(payload.size() <= UINT32_MAX, "a message of {} bytes", payload.size());
  const auto length = static_cast<std::uint32_t>(payload.size());
  std::string frame;
  frame.reserve(kFrameHeaderBytes + payload.size());
  for (int shift = 24; shift >= 0; shift -= 8) frame += static_cast<char>(length >> shift);
  frame += payload;
  return frame;
}

void FrameReader::Append(std::span<const std::byte> bytes) {
  if (taken_ == buffer_.size() && buffer_.capacity() > kKeptBytes) {
    buffer_ = std::string();
  } else {
    buffer_.erase(0, taken_);
  }
  taken_ = 0;
  buffer_.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

Result<std::optional<std::span<const std::byte>>> FrameReader::Next() {
  using Frame = std::optional<std::span<const std::byte>>;
  const std::string_view rest = std::string_view(buffer_).substr(taken_);
  if (rest.size() < kFrameHeaderBytes) return Frame();
  const std::uint32_t length = LengthAt(rest);
  if (length == 0 || length > max_bytes_) {
    const std::string_view begins = rest.substr(0, kFrameHeaderBytes);
    if (IsPrintable(begins)) {
      return Error{
          ErrorCode::kInvalid,
          fmt::format("no message of Lockstep but a text that begins with {}{}", Quoted(begins),
                      begins == "HTTP" || begins.front() == '<' ? ", as a web server's" : "")};
    }
    return Error{ErrorCode::kInvalid, fmt::format("a message of {} bytes where 1 to {} are allowed",
                                                  length, max_bytes_)};
  }
  if (rest.size() < kFrameHeaderBytes + length) return Frame();
  taken_ += kFrameHeaderBytes + length;
  return Frame(std::as_bytes(std::span(rest)).subspan(kFrameHeaderBytes, length));
}

}  // namespace lockstep::transport::control
