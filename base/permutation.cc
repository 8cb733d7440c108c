#include "base/permutation.h"

#include <numeric>
#include <utility>

#include "base/random.h"

namespace lockstep {

std::vector<std::uint32_t> EpochOrder(std::uint64_t seed, Epoch epoch, std::uint32_t size) {
  std::vector<std::uint32_t> order(size);
  std::iota(order.begin(), order.end(), 0u);
  RandomStream random(seed, 0x73616D706C65ull /* "sample" */, epoch.value);
  for (std::uint32_t i = size; i > 1; --i) {
    std::swap(order[i - 1], order[random.NextBelow(i)]);
  }
  return order;
}

}  // namespace lockstep
