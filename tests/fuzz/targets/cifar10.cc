// Batches of CIFAR-10.
#include "worker/data/cifar10.h"

#include "base/check.h"
#include "tests/fuzz/target.h"
#include "tests/unit/data/fixtures.h"

namespace lockstep::fuzz {

bool Run(Bytes bytes) {
  const auto source = worker::FromMemory("batch", bytes);
  worker::Samples samples;
  const Status status = worker::ReadCifar10(*source, samples);
  LOCKSTEP_CHECK(samples.pixels.size() == std::size_t{samples.size()} * 3072);
  for (std::uint16_t label : samples.labels) LOCKSTEP_CHECK(label < 10);
  LOCKSTEP_CHECK(!status.ok() || samples.size() * std::size_t{3073} == bytes.size());
  return status.ok();
}

std::vector<std::string> Seeds() {
  return {test::CifarRecord(1, 2), test::CifarRecord(9, 2) + test::CifarRecord(0, 8)};
}

}  // namespace lockstep::fuzz
