// Presents a session's memory as a tensor that other libraries view, by the structures of DLPack
// (github.com/dmlc/dlpack, dlpack.h).
#pragma once

#include <cstdint>
#include <memory>

extern "C" {

struct DLDevice {
  std::int32_t device_type;
  std::int32_t device_id;
};

struct DLDataType {
  std::uint8_t code;
  std::uint8_t bits;
  std::uint16_t lanes;
};

struct DLTensor {
  void* data;
  DLDevice device;
  std::int32_t ndim;
  DLDataType dtype;
  std::int64_t* shape;
  std::int64_t* strides;  // null: compact, the last dimension first
  std::uint64_t byte_offset;
};

struct DLManagedTensor {
  DLTensor dl_tensor;
  void* manager_ctx;
  void (*deleter)(DLManagedTensor* self);
};

}  // extern "C"

namespace lockstep::capi {

// The tensor has `count` FP32 values at `at`, which stay as long as the tensor: until its deleter
// is called. `gpu`: the number of the CUDA device; below 0: the host's memory.
DLManagedTensor* MakeTensor(std::shared_ptr<const void> memory, const float* at,
                            std::uint64_t count, int gpu);

}  // namespace lockstep::capi
