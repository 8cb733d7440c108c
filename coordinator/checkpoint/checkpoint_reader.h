// The tensors of a checkpoint file as the StateChunks that workers get, one after the other: no
// more than one chunk of them is in memory. Control thread only.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "base/messages.h"
#include "base/result.h"
#include "coordinator/checkpoint/safetensors_header.h"
#include "coordinator/job/job_state.h"

namespace lockstep::coordinator {

class SafetensorsFile;

// The named tensors of a checkpoint, and which of them make up each of StateChunk's tensors: the
// parameters first, then one for each tensor of optimizer state.
struct CheckpointLayout {
  std::vector<FileTensor> tensors;  // in the order of the file when this program writes it
  std::size_t in_one = 0;           // of them make one tensor of StateChunk, in their order
};
CheckpointLayout LayOutCheckpoint(std::uint64_t parameter_count, std::uint32_t state_tensors,
                                  const std::vector<TensorInfo>& tensors,
                                  const std::vector<std::string>& state_names);

class CheckpointReader {
 public:
  // Finds each tensor by its name. kInvalid: one is not there, has another shape, or is too many.
  static Result<CheckpointReader> Open(const std::filesystem::path& path, const JobState& state);
  CheckpointReader(CheckpointReader&&) noexcept;
  CheckpointReader& operator=(CheckpointReader&&) noexcept;
  ~CheckpointReader();

  // The next chunk, of at most `most` bytes; not after the last one.
  Result<msg::StateChunk> Next(std::uint64_t most);
  std::uint64_t read() const { return read_; }    // bytes
  std::uint64_t total() const { return total_; }  // bytes
  // Names the tensor of the next chunk.
  const std::string& name() const;

 private:
  CheckpointReader();

  std::unique_ptr<SafetensorsFile> file_;
  std::vector<std::size_t> order_;  // indices of the file's tensors
  std::size_t in_one_ = 0;
  RoundId round_;
  std::size_t at_ = 0;        // of order_
  std::uint64_t offset_ = 0;  // in that tensor
  std::uint64_t flat_ = 0;    // in StateChunk's tensor
  std::uint64_t read_ = 0;
  std::uint64_t total_ = 0;
};

}  // namespace lockstep::coordinator
