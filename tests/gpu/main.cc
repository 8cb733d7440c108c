// The tests of this folder take a GPU. Where there is none they say so in one line and end with a
// status that ctest shows as "Skipped".
#include <gtest/gtest.h>

#include <cstdio>

#include "worker/compute/cuda/cuda_compute.h"

int main(int argc, char** argv) {
  constexpr int kSkipped = 77;
  testing::InitGoogleTest(&argc, argv);
  if (const auto count = lockstep::worker::CudaDeviceCount(); !count) {
    std::printf("skipped: %s\n", count.error().message.c_str());
    return kSkipped;
  }
  return RUN_ALL_TESTS();
}
