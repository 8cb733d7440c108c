// IDX, the format of MNIST and similar sets: two zero bytes, a type (8: unsigned bytes), the number
// of dimensions, each dimension as a big-endian 32-bit number, the values.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "worker/data/byte_source.h"
#include "worker/data/dataset.h"

namespace lockstep::worker {

struct IdxArray {
  std::vector<std::uint32_t> dimensions;
  std::vector<std::uint8_t> values;
};

// Reads an array of unsigned bytes with so many dimensions, none of them zero. Memory grows with
// the bytes that really exist, whatever the header says.
Result<IdxArray> ReadIdx(ByteSource& source, std::size_t dimensions);

// Opens {train,t10k}-images-idx3-ubyte and {train,t10k}-labels-idx1-ubyte in `folder`, each plain
// or with .gz.
Result<std::unique_ptr<Dataset>> OpenIdx(const std::string& folder);

}  // namespace lockstep::worker
