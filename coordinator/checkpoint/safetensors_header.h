// The header of the safetensors format (https://github.com/huggingface/safetensors): 8 bytes of
// length, little-endian, a JSON object of tensors and "__metadata__", then the tensors' bytes
// without gaps.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace lockstep::coordinator {

using Metadata = std::map<std::string, std::string>;

// A tensor as the writer takes it. `dtype`: F64, F32, F16, BF16, I64, I32, I16, I8, U64, U32, U16,
// U8, BOOL; little-endian.
struct FileTensor {
  std::string name;
  std::string dtype = "F32";
  std::vector<std::uint64_t> shape;
  bool operator==(const FileTensor&) const = default;
};

struct StoredTensor {
  FileTensor info;
  std::uint64_t offset = 0;  // from the end of the header
  std::uint64_t bytes = 0;
};

struct SafetensorsHeader {
  std::vector<StoredTensor> tensors;  // by offset, without gaps
  Metadata metadata;
  std::uint64_t data_bytes = 0;
};

// Lays the tensors out in the order given. Errors: unknown dtype, a name twice, sizes that
// overflow.
Result<SafetensorsHeader> LayOut(const std::vector<FileTensor>& tensors, Metadata metadata);

// The length and the JSON; a multiple of 8 bytes.
std::string EncodeHeader(const SafetensorsHeader& header);

// `json`: without the length. `data_bytes`: what follows it in the file; the tensors must fill
// exactly that. Errors begin with what is wrong, without the file.
Result<SafetensorsHeader> ParseHeader(std::string_view json, std::uint64_t data_bytes);

}  // namespace lockstep::coordinator
