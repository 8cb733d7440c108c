// What a fuzz target is: bytes of a stranger, and the code that is to bear them. Each target is one
// source file in targets/ that defines Run and Seeds; CMakeLists.txt links it with fuzz_main.cc
// (libFuzzer: fuzz_NAME) and with replay_main.cc (any compiler: replay_NAME).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::fuzz {

using Bytes = std::span<const std::uint8_t>;

// True when the bytes were taken for good. What is taken must be consistent and what is refused be
// refused in one line; else the process ends (LOCKSTEP_CHECK), as it does when a sanitizer sees
// something.
bool Run(Bytes bytes);

// Good inputs, to begin with. All of them are taken.
std::vector<std::string> Seeds();

// Decisions out of the bytes of an input, for targets that have more to do than to read. At the end
// all is zero or empty.
class Input {
 public:
  explicit Input(Bytes bytes) : rest_(bytes) {}

  bool empty() const { return rest_.empty(); }
  std::uint8_t Byte() {
    if (rest_.empty()) return 0;
    const std::uint8_t byte = rest_.front();
    rest_ = rest_.subspan(1);
    return byte;
  }
  std::uint16_t Word() {
    const std::uint16_t low = Byte();
    return static_cast<std::uint16_t>(low | Byte() << 8);
  }
  // As many as there are, at most.
  Bytes Take(std::size_t count) {
    const Bytes taken = rest_.first(std::min(count, rest_.size()));
    rest_ = rest_.subspan(taken.size());
    return taken;
  }
  Bytes TakeRest() { return Take(rest_.size()); }
  // A number of two bytes, and so many bytes.
  Bytes TakeChunk() { return Take(Word()); }

 private:
  Bytes rest_;
};

// What Input::TakeChunk reads.
inline std::string Chunk(std::string_view bytes) {
  std::string chunk;
  chunk += static_cast<char>(bytes.size());
  chunk += static_cast<char>(bytes.size() >> 8);
  return chunk.append(bytes);
}

inline std::string_view Text(Bytes bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

inline bool OneLine(std::string_view message) {
  return !message.empty() && message.find('\n') == std::string_view::npos;
}

}  // namespace lockstep::fuzz
