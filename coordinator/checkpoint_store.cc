#include "coordinator/checkpoint_store.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <sstream>
#include <system_error>
#include <utility>

#include "coordinator/checkpoint/safetensors.h"
#include "coordinator/checkpoint/whole_file.h"

namespace lockstep::coordinator {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kChunkBytes = 1u << 20;

std::string Stem(RoundId round) { return fmt::format("round-{:010}", round.value); }

// One tensor of a StateChunk's flat vector; several named ones when the model gave names.
struct Segment {
  std::size_t tensor = 0;  // in the file
  std::uint64_t bytes = 0;
};

// How the flat vectors lie in the file: by StateChunk::tensor, then in order.
struct FileLayout {
  std::vector<FileTensor> tensors;
  std::vector<std::vector<Segment>> flat;
};

FileLayout LayOut(const Ready& ready) {
  std::vector<TensorInfo> model = ready.tensors;
  if (model.empty()) model.push_back({"parameters", {ready.parameter_count}});
  FileLayout layout;
  for (std::uint32_t t = 0; t <= ready.state_tensors; ++t) {
    std::string prefix;
    if (t > 0) {
      prefix = t - 1 < ready.state_names.size() ? "optimizer." + ready.state_names[t - 1] + "."
                                                : fmt::format("optimizer.{}.", t - 1);
    }
    auto& segments = layout.flat.emplace_back();
    for (const TensorInfo& tensor : model) {
      std::uint64_t count = 1;
      for (std::uint64_t extent : tensor.shape) count *= extent;
      segments.push_back({layout.tensors.size(), count * sizeof(float)});
      layout.tensors.push_back(
          {.name = prefix + tensor.name, .dtype = "F32", .shape = tensor.shape});
    }
  }
  return layout;
}

}  // namespace

// A checkpoint that is coming in.
struct CheckpointStore::Writing {
  RoundId round;
  FileLayout layout;
  std::unique_ptr<SafetensorsWriter> writer;
  std::size_t segment = 0;  // of the tensor that is being filled
  std::uint32_t tensor = 0;
  std::uint64_t in_segment = 0;  // bytes
  std::string error;

  // The next bytes of flat tensor `flat`, cut at the named tensors' ends.
  Status Append(std::uint32_t flat, std::span<const std::byte> bytes) {
    if (flat != tensor) {
      tensor = flat;
      segment = 0;
      in_segment = 0;
    }
    if (flat >= layout.flat.size())
      return Error{ErrorCode::kInvalid, "a piece of a tensor that the job does not have"};
    while (!bytes.empty()) {
      if (segment == layout.flat[flat].size())
        return Error{ErrorCode::kInvalid, "more state than the model has"};
      const Segment& to = layout.flat[flat][segment];
      const std::size_t n = std::min<std::uint64_t>(bytes.size(), to.bytes - in_segment);
      if (Status status = writer->Append(to.tensor, bytes.first(n)); !status.ok()) return status;
      bytes = bytes.subspan(n);
      in_segment += n;
      if (in_segment == to.bytes) {
        ++segment;
        in_segment = 0;
      }
    }
    return {};
  }
};

CheckpointStore::CheckpointStore(fs::path directory, std::uint32_t keep)
    : directory_(std::move(directory)), keep_(std::max(keep, 1u)) {}

CheckpointStore::~CheckpointStore() = default;

void CheckpointStore::Describe(const Ready& ready) {
  if (!layout_) layout_ = ready;
}

void CheckpointStore::Add(const StateChunk& piece) {
  if (piece.tensor == 0 && piece.offset == 0) {
    writing_ = std::make_unique<Writing>();
    writing_->round = piece.round;
    LOCKSTEP_CHECK(layout_.has_value(), "state before any worker was ready");
    writing_->layout = LayOut(*layout_);
    auto writer = SafetensorsWriter::Create(
        (directory_ / (Stem(piece.round) + ".safetensors")).string(), writing_->layout.tensors,
        {{"format", "lockstep"}, {"round", fmt::format("{}", piece.round)}});
    if (writer) {
      writing_->writer = std::move(*writer);
    } else {
      writing_->error = writer.error().message;
    }
  }
  if (!writing_ || !writing_->error.empty()) return;
  if (Status status = writing_->Append(piece.tensor, piece.bytes); !status.ok()) {
    writing_->error = status.error().message;
    writing_->writer.reset();
  }
}

Status CheckpointStore::Save(RoundId round, const JobState& state) {
  auto writing = std::move(writing_);
  if (!writing || writing->round != round)
    return Error{ErrorCode::kNotFound, fmt::format("no state after round {} has come", round)};
  if (!writing->error.empty()) return Error{ErrorCode::kIo, writing->error};
  if (Status status = writing->writer->Commit(); !status.ok()) return status;
  if (Status status = WriteWholeFile(directory_ / (Stem(round) + ".json"), ToJson(state));
      !status.ok()) {
    std::error_code ignored;
    fs::remove(directory_ / (Stem(round) + ".safetensors"), ignored);
    return status;
  }
  RemoveOld();
  return {};
}

void CheckpointStore::Drop(RoundId round) {
  if (writing_ && writing_->round == round) writing_.reset();
}

void CheckpointStore::RemoveOld() {
  std::vector<fs::path> valid;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(directory_, error)) {
    if (entry.path().extension() == ".json") valid.push_back(entry.path());
  }
  std::sort(valid.begin(), valid.end());
  for (std::size_t i = 0; i + keep_ < valid.size(); ++i) {
    // The state first: without it the tensors count for nothing.
    fs::remove(valid[i], error);
    fs::remove(fs::path(valid[i]).replace_extension(".safetensors"), error);
  }
}

Result<std::optional<CheckpointStore::Loaded>> CheckpointStore::Newest() const {
  std::optional<fs::path> newest;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(directory_, error)) {
    if (entry.path().extension() == ".json" && (!newest || entry.path() > *newest))
      newest = entry.path();
  }
  if (!newest) return std::optional<Loaded>();
  std::ifstream in(*newest, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  auto state = JobStateFromJson(text.str());
  if (!state)
    return Error{state.error().code,
                 fmt::format("{}: {}", newest->string(), state.error().message)};
  Loaded loaded;
  loaded.state = std::move(*state);
  loaded.round = RoundId(loaded.state.next_round.value - 1);
  loaded.tensors = fs::path(*newest).replace_extension(".safetensors");
  auto file = SafetensorsFile::Open(loaded.tensors.string());
  if (!file) return file.error();
  std::uint64_t bytes = 0;
  for (const StoredTensor& tensor : file->header().tensors) bytes += tensor.bytes;
  const std::uint64_t expected =
      loaded.state.parameter_count * (1 + loaded.state.state_tensors) * sizeof(float);
  if (bytes != expected) {
    return Error{
        ErrorCode::kInvalid,
        fmt::format("{}: holds {} bytes of state where {} tells of {}", loaded.tensors.string(),
                    bytes, newest->filename().string(), expected)};
  }
  return std::optional(std::move(loaded));
}

Status CheckpointStore::ReadState(const Loaded& loaded,
                                  const std::function<bool(StateChunk)>& take) {
  auto file = SafetensorsFile::Open(loaded.tensors.string());
  if (!file) return file.error();
  const std::uint64_t flat_bytes = loaded.state.parameter_count * sizeof(float);
  const auto& tensors = file->header().tensors;
  StateChunk chunk{.round = loaded.round, .tensor = 0, .offset = 0, .last = false, .bytes = {}};
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    for (std::uint64_t offset = 0; offset < tensors[t].bytes;) {
      chunk.bytes.resize(std::min(kChunkBytes, tensors[t].bytes - offset));
      if (Status read = file->Read(t, offset, chunk.bytes); !read.ok()) return read;
      offset += chunk.bytes.size();
      const std::uint64_t length = chunk.bytes.size();
      if (chunk.offset + length > flat_bytes) {
        return Error{ErrorCode::kInvalid, fmt::format("{}: its tensors do not add up to the model",
                                                      loaded.tensors.string())};
      }
      chunk.last = t + 1 == tensors.size() && offset == tensors[t].bytes;
      if (!take(chunk)) return {};
      chunk.offset += length;
      if (chunk.offset == flat_bytes) {
        ++chunk.tensor;
        chunk.offset = 0;
      }
    }
  }
  return {};
}

}  // namespace lockstep::coordinator
