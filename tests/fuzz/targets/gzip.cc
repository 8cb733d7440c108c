// As idx, through the file system and zlib.
#include "base/check.h"
#include "tests/fuzz/accepts_idx.h"
#include "tests/fuzz/memory_file.h"
#include "tests/fuzz/target.h"
#include "tests/temp_folder.h"
#include "tests/unit/data/fixtures.h"
#include "worker/data/byte_source.h"

namespace lockstep::fuzz {
namespace {

std::string Gzip(const std::string& bytes) {
  const test::TempFolder folder;
  test::WriteGzip(folder / "a.gz", bytes);
  return test::ReadFile(folder / "a.gz");
}

}  // namespace

bool Run(Bytes bytes) {
  const MemoryFile file(bytes);
  auto source = worker::OpenFile(file.path());
  LOCKSTEP_CHECK(source.ok());
  return AcceptsIdx(**source, 1);
}

std::vector<std::string> Seeds() {
  return {Gzip(test::IdxHeader({9}) + "123456789"),
          Gzip(test::IdxHeader({3000}) + std::string(3000, 'a')),
          test::IdxHeader({9}) + "123456789"};
}

}  // namespace lockstep::fuzz
