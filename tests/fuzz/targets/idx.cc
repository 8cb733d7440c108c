// IDX files, of images and of labels.
#include "worker/data/idx.h"

#include "base/check.h"
#include "tests/fuzz/accepts_idx.h"
#include "tests/fuzz/target.h"
#include "tests/unit/data/fixtures.h"

namespace lockstep::fuzz {

bool Run(Bytes bytes) {
  const auto images = worker::FromMemory("images", bytes);
  const auto labels = worker::FromMemory("labels", bytes);
  const bool accepted = AcceptsIdx(*images, 3);
  return AcceptsIdx(*labels, 1) || accepted;
}

std::vector<std::string> Seeds() {
  return {test::IdxHeader({6, 3, 4}) + test::Pixels(6, 12), test::IdxHeader({9}) + "123456789",
          test::IdxHeader({1, 1, 1}) + "1"};
}

}  // namespace lockstep::fuzz
