// Files of tensors.
#include "coordinator/checkpoint/safetensors.h"

#include <utility>

#include "base/check.h"
#include "tests/fuzz/memory_file.h"
#include "tests/fuzz/target.h"
#include "tests/temp_folder.h"
#include "tests/unit/data/fixtures.h"

namespace lockstep::fuzz {
namespace {

std::string File(const std::vector<coordinator::FileTensor>& tensors,
                 coordinator::Metadata metadata) {
  const test::TempFolder folder;
  auto writer = coordinator::SafetensorsWriter::Create(folder / "a", tensors, std::move(metadata));
  LOCKSTEP_CHECK(writer.ok());
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    std::size_t bytes = 4;
    for (std::uint64_t extent : tensors[i].shape) bytes *= extent;
    LOCKSTEP_CHECK((*writer)->Append(i, std::vector<std::byte>(bytes)).ok());
  }
  LOCKSTEP_CHECK((*writer)->Commit().ok());
  return test::ReadFile(folder / "a");
}

}  // namespace

bool Run(Bytes bytes) {
  const MemoryFile memory(bytes);
  const auto file = coordinator::SafetensorsFile::Open(memory.path());
  if (!file) {
    LOCKSTEP_CHECK(OneLine(file.error().message), "{}", file.error().message);
    return false;
  }
  std::uint64_t end = 0;
  for (std::size_t i = 0; i < file->header().tensors.size(); ++i) {
    const coordinator::StoredTensor& tensor = file->header().tensors[i];
    LOCKSTEP_CHECK(tensor.offset == end);
    end += tensor.bytes;
    std::vector<std::byte> values(tensor.bytes);
    LOCKSTEP_CHECK(file->Read(i, 0, values).ok());
  }
  LOCKSTEP_CHECK(end < bytes.size());
  return true;
}

std::vector<std::string> Seeds() {
  return {File({{"weight", "F32", {3, 4}}, {"bias", "F32", {5}}}, {{"round", "17"}}),
          File({{"a", "F32", {}}, {"b", "I32", {0, 7}}, {"c", "F32", {2}}}, {}), File({}, {})};
}

}  // namespace lockstep::fuzz
