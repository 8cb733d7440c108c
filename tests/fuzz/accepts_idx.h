// What holds of an IDX file that is taken, or refused.
#pragma once

#include "base/check.h"
#include "worker/data/idx.h"

namespace lockstep::fuzz {

inline bool AcceptsIdx(worker::ByteSource& source, std::size_t dimensions) {
  const auto array = worker::ReadIdx(source, dimensions);
  if (!array) {
    LOCKSTEP_CHECK(array.error().message.starts_with(source.name()));
    return false;
  }
  std::size_t total = 1;
  for (std::uint32_t extent : array->dimensions) total *= extent;
  LOCKSTEP_CHECK(total == array->values.size() && array->dimensions.size() == dimensions);
  return true;
}

}  // namespace lockstep::fuzz
