#include "coordinator/checkpoint/checkpoint_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "coordinator/checkpoint/safetensors.h"

namespace lockstep::coordinator {
namespace {

constexpr std::uint64_t kChunkBytes = 1u << 20;

}  // namespace

CheckpointLayout LayOutCheckpoint(std::uint64_t parameter_count, std::uint32_t state_tensors,
                                  const std::vector<TensorInfo>& tensors,
                                  const std::vector<std::string>& state_names) {
  std::vector<TensorInfo> model = tensors;
  if (model.empty()) model.push_back({"parameters", {parameter_count}});
  CheckpointLayout layout;
  layout.in_one = model.size();
  for (std::uint32_t t = 0; t <= state_tensors; ++t) {
    std::string prefix;
    if (t > 0) {
      prefix = t - 1 < state_names.size() ? "optimizer." + state_names[t - 1] + "."
                                          : fmt::format("optimizer.{}.", t - 1);
    }
    for (const TensorInfo& tensor : model) {
      layout.tensors.push_back(
          {.name = prefix + tensor.name, .dtype = "F32", .shape = tensor.shape});
    }
  }
  return layout;
}

CheckpointReader::CheckpointReader() = default;
CheckpointReader::CheckpointReader(CheckpointReader&&) noexcept = default;
CheckpointReader& CheckpointReader::operator=(CheckpointReader&&) noexcept = default;
CheckpointReader::~CheckpointReader() = default;

Result<CheckpointReader> CheckpointReader::Open(const std::filesystem::path& path,
                                                const JobState& state) {
  auto file = SafetensorsFile::Open(path.string());
  if (!file) return file.error();
  const auto invalid = [&](const std::string& what) {
    return Error{ErrorCode::kInvalid, fmt::format("{}: {}", path.string(), what)};
  };
  CheckpointReader reader;
  const CheckpointLayout layout = LayOutCheckpoint(state.parameter_count, state.state_tensors,
                                                   state.tensors, state.state_names);
  for (const FileTensor& wanted : layout.tensors) {
    const auto found = file->Find(wanted.name);
    if (!found) return found.error();
    const StoredTensor& stored = file->header().tensors[*found];
    if (stored.info != wanted) {
      return invalid(fmt::format("tensor '{}' is {} {} where {} {} belongs", wanted.name,
                                 stored.info.dtype, InWords(stored.info.shape), wanted.dtype,
                                 InWords(wanted.shape)));
    }
    reader.order_.push_back(*found);
    reader.total_ += stored.bytes;
  }
  if (file->header().tensors.size() != layout.tensors.size()) {
    return invalid(fmt::format("has {} tensors where the checkpoint has {}",
                               file->header().tensors.size(), layout.tensors.size()));
  }
  if (reader.total_ !=
      state.parameter_count * (std::uint64_t{1} + state.state_tensors) * sizeof(float)) {
    return invalid("its tensors do not add up to the model");
  }
  reader.in_one_ = layout.in_one;
  reader.round_ = RoundId(state.next_round.value - 1);
  reader.file_ = std::make_unique<SafetensorsFile>(*std::move(file));
  return reader;
}

const std::string& CheckpointReader::name() const {
  return file_->header().tensors[order_[at_]].info.name;
}

Result<msg::StateChunk> CheckpointReader::Next(std::uint64_t most) {
  LOCKSTEP_CHECK(read_ < total_ && most > 0, "read beyond the checkpoint's end");
  const auto length = [this] { return file_->header().tensors[order_[at_]].bytes; };
  while (offset_ == length()) {
    offset_ = 0;
    if (++at_ % in_one_ == 0) flat_ = 0;
  }
  msg::StateChunk chunk;
  chunk.round = round_;
  chunk.tensor = static_cast<std::uint32_t>(at_ / in_one_);
  chunk.offset = flat_;
  chunk.bytes.resize(std::min({kChunkBytes, most, length() - offset_}));
  if (Status status = file_->Read(order_[at_], offset_, chunk.bytes); !status.ok()) {
    return status.error();
  }
  offset_ += chunk.bytes.size();
  flat_ += chunk.bytes.size();
  read_ += chunk.bytes.size();
  chunk.last = read_ == total_;
  return chunk;
}

}  // namespace lockstep::coordinator
