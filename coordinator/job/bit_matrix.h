// A dense matrix of bits with rows that can be combined word by word.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace lockstep::coordinator {

class BitMatrix {
 public:
  BitMatrix() = default;
  BitMatrix(std::size_t rows, std::size_t columns)
      : words_((columns + 63) / 64), bits_(rows * words_) {}

  bool Test(std::size_t row, std::size_t column) const {
    return (bits_[row * words_ + column / 64] >> (column % 64) & 1) != 0;
  }
  // The old value.
  bool Set(std::size_t row, std::size_t column, bool value = true) {
    std::uint64_t& word = bits_[row * words_ + column / 64];
    const std::uint64_t bit = std::uint64_t{1} << (column % 64);
    const bool old = (word & bit) != 0;
    word = value ? word | bit : word & ~bit;
    return old;
  }
  void Clear() { std::fill(bits_.begin(), bits_.end(), 0); }
  std::size_t words() const { return words_; }
  void SetWord(std::size_t row, std::size_t index, std::uint64_t value) {
    bits_[row * words_ + index] = value;
  }
  std::uint64_t Word(std::size_t row, std::size_t index) const {
    return bits_[row * words_ + index];
  }

 private:
  std::size_t words_ = 0;
  std::vector<std::uint64_t> bits_;
};

}  // namespace lockstep::coordinator
