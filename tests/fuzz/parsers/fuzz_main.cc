#include <cstddef>
#include <cstdint>

#include "tests/fuzz/parsers/targets.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  lockstep::fuzz::LOCKSTEP_FUZZ_TARGET({data, size});
  return 0;
}
