// Counter-based random numbers: the value depends on the key and the counter alone, so it does not
// matter which worker, thread or order draws it. Dropout, augmentation, initial parameters and the
// sample order all come from here.
#pragma once

#include <cstdint>

namespace lockstep {

// SplitMix64's finalizer (Steele, Lea, Flood 2014): a bijection of 64-bit words with good
// avalanche.
constexpr std::uint64_t Mix64(std::uint64_t x) {
  x += 0x9E3779B97F4A7C15ull;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

// A stream of random words, named by up to three keys, e.g. (seed, epoch, sample position).
class RandomStream {
 public:
  constexpr explicit RandomStream(std::uint64_t seed, std::uint64_t key1 = 0,
                                  std::uint64_t key2 = 0)
      : key_(Mix64(Mix64(Mix64(seed) ^ key1) ^ key2)) {}

  // The i-th word of the stream, in any order and any number of times.
  constexpr std::uint64_t Word(std::uint64_t i) const { return Mix64(key_ ^ Mix64(i)); }
  constexpr std::uint64_t NextWord() { return Word(counter_++); }
  // Uniform in [0, 1) with 24 bits.
  constexpr float NextUniform() { return static_cast<float>(NextWord() >> 40) * 0x1p-24f; }
  // Uniform in [0, bound), bound > 0, without bias (rejection).
  constexpr std::uint64_t NextBelow(std::uint64_t bound) {
    const std::uint64_t limit = bound * (~std::uint64_t{0} / bound);
    for (;;) {
      const std::uint64_t word = NextWord();
      if (word < limit) return word % bound;
    }
  }

 private:
  std::uint64_t key_;
  std::uint64_t counter_ = 0;
};

}  // namespace lockstep
