// Blocks of few numbers of many, as a peer's memory has them, or its pieces: nothing beyond the
// block is written, and what was read is what is read again after it was written.
#include "worker/memory/sparse.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "base/check.h"
#include "tests/fuzz/target.h"

namespace lockstep::fuzz {

namespace {

constexpr worker::NumberType kTypes[] = {worker::NumberType::kFp32, worker::NumberType::kBf16,
                                         worker::NumberType::kFp16};
constexpr std::uint32_t kEntries[] = {1, 11, 64, 65, 512, 1024};
constexpr float kAround = 7;

}  // namespace

// The first two bytes say of which type and how many; what is missing behind them is zeros.
bool Run(Bytes bytes) {
  if (bytes.size() < 2) return false;
  const worker::NumberType type = kTypes[bytes[0] % std::size(kTypes)];
  const std::uint32_t entries = kEntries[bytes[1] % std::size(kEntries)];
  const std::size_t number = worker::NumberBytes(type);
  std::vector<std::byte> block(SparseBlockNumbers(entries, number) * number);
  std::memcpy(block.data(), bytes.data() + 2, std::min(block.size(), bytes.size() - 2));
  std::vector<float> read(3 * kSparseBlock, kAround);
  std::fill_n(read.begin() + kSparseBlock, kSparseBlock, 0.0f);
  worker::AddSparse(type, entries, block.data(), 1, read.data() + kSparseBlock);
  for (std::size_t i = 0; i < kSparseBlock; ++i) {
    LOCKSTEP_CHECK(read[i] == kAround && read[2 * kSparseBlock + i] == kAround, "beyond the block");
  }
  if (type != worker::NumberType::kFp32) return true;  // sums of equal places are rounded
  worker::PutNonZero(type, entries, read.data() + kSparseBlock, kSparseBlock, block.data());
  std::vector<float> again(kSparseBlock);
  worker::AddSparse(type, entries, block.data(), 1, again.data());
  for (std::size_t i = 0; i < kSparseBlock; ++i) {
    const float was = read[kSparseBlock + i];
    LOCKSTEP_CHECK(again[i] == was || (std::isnan(again[i]) && std::isnan(was)), "{} at {} was {}",
                   again[i], i, was);
  }
  return true;
}

std::vector<std::string> Seeds() {
  std::vector<std::string> seeds;
  for (char type = 0; type < 3; ++type) {
    for (char entries = 0; entries < 6; ++entries) {
      seeds.push_back({type, entries});
      for (int i = 0; i < 6000; ++i) seeds.back() += static_cast<char>(i * 7);
    }
  }
  return seeds;
}

}  // namespace lockstep::fuzz
