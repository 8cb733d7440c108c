#include "worker/capi/dlpack.h"

#include <utility>

namespace lockstep::capi {
namespace {

// The numbers come from dlpack.h.
constexpr std::int32_t kCpu = 1;
constexpr std::int32_t kCuda = 2;
constexpr std::uint8_t kFloat = 2;

struct Kept {
  DLManagedTensor tensor{};
  std::int64_t shape = 0;
  std::shared_ptr<const void> memory;
};

void Release(DLManagedTensor* self) { delete static_cast<Kept*>(self->manager_ctx); }

}  // namespace

DLManagedTensor* MakeTensor(std::shared_ptr<const void> memory, const float* at,
                            std::uint64_t count, int gpu) {
  auto kept = std::make_unique<Kept>();
  kept->shape = static_cast<std::int64_t>(count);
  kept->memory = std::move(memory);
  kept->tensor = {.dl_tensor = {.data = const_cast<float*>(at),
                                .device = {gpu < 0 ? kCpu : kCuda, gpu < 0 ? 0 : gpu},
                                .ndim = 1,
                                .dtype = {kFloat, 32, 1},
                                .shape = &kept->shape,
                                .strides = nullptr,
                                .byte_offset = 0},
                  .manager_ctx = kept.get(),
                  .deleter = Release};
  return &kept.release()->tensor;
}

}  // namespace lockstep::capi
