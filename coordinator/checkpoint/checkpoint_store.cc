#include "coordinator/checkpoint/checkpoint_store.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <span>
#include <system_error>
#include <utility>

#include "base/regular_file.h"
#include "coordinator/checkpoint/checkpoint_manifest.h"
#include "coordinator/checkpoint/checkpoint_reader.h"
#include "coordinator/checkpoint/safetensors.h"
#include "coordinator/record/whole_file.h"

namespace lockstep::coordinator {
namespace {

namespace fs = std::filesystem;

// The bound of a job's state: the names of its tensors and the ranges that are left, with room to
// spare.
constexpr std::size_t kMaxStateBytes = 256u << 20;

constexpr char kStem[] = "round-";

std::string Stem(RoundId round) { return fmt::format("{}{:010}", kStem, round.value); }

// Lists the files that make a checkpoint valid, in the order of their rounds. Other files there
// belong to somebody else, such as a copy that is to stay.
std::vector<fs::path> ValidOnes(const fs::path& directory) {
  std::vector<fs::path> valid;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(directory, error)) {
    const std::string stem = entry.path().stem().string();
    std::uint64_t round = 0;
    const char* end = stem.data() + stem.size();
    const char* digits = stem.data() + std::min(stem.size(), sizeof kStem - 1);
    if (entry.path().extension() == ".json" && stem.starts_with(kStem) &&
        std::from_chars(digits, end, round).ptr == end && stem == Stem(RoundId(round))) {
      valid.push_back(entry.path());
    }
  }
  std::sort(valid.begin(), valid.end());
  return valid;
}

void RemoveOld(const fs::path& directory, std::uint32_t keep) {
  const std::vector<fs::path> valid = ValidOnes(directory);
  std::error_code error;
  for (std::size_t i = 0; i + keep < valid.size(); ++i) {
    // The state first: without it the tensors count for nothing.
    fs::remove(valid[i], error);
    fs::remove(fs::path(valid[i]).replace_extension(".safetensors"), error);
    // Then the residuals that workers have saved beside it (checkpoint.residuals).
    const std::string beside = valid[i].stem().string() + ".residual-";
    for (const auto& entry : fs::directory_iterator(directory, error)) {
      if (entry.path().filename().string().starts_with(beside)) fs::remove(entry, error);
    }
  }
}

bool AllNumbers(std::span<const std::byte> bytes) {
  return std::ranges::all_of(
      std::span(reinterpret_cast<const float*>(bytes.data()), bytes.size() / sizeof(float)),
      [](float value) { return std::isfinite(value); });
}

// One pass over all of it.
Status CheckContents(const fs::path& path, const JobState& state) {
  auto reader = CheckpointReader::Open(path, state);
  if (!reader) return reader.error();
  DigestStream digest;
  while (reader->read() < reader->total()) {
    auto chunk = reader->Next(reader->total());
    if (!chunk) return chunk.error();
    if (!AllNumbers(chunk->bytes)) {
      return Error{ErrorCode::kInvalid,
                   fmt::format("{}: tensor '{}' has values that are not finite", path.string(),
                               reader->name())};
    }
    digest.Update(chunk->bytes);
  }
  if (digest.Digest() != state.digest) {
    return Error{ErrorCode::kInvalid,
                 fmt::format("{}: its values are not those that were written: they have the digest "
                             "{}, the checkpoint's is {}",
                             path.string(), ToString(digest.Digest()), ToString(state.digest))};
  }
  return {};
}

}  // namespace

// A checkpoint that is coming in.
struct CheckpointStore::Writing {
  RoundId round;
  CheckpointLayout layout;
  std::unique_ptr<SafetensorsWriter> writer;
  std::vector<std::uint64_t> bytes;  // of each named tensor
  std::uint32_t tensor = 0;          // of StateChunk, that is being filled
  std::size_t at = 0;                // named tensor in it
  std::uint64_t in_named = 0;        // bytes
  std::string error;

  // The next bytes of flat tensor `flat`, cut at the named tensors' ends.
  Status Append(std::uint32_t flat, std::span<const std::byte> piece) {
    if (flat != tensor) {
      tensor = flat;
      at = 0;
      in_named = 0;
    }
    if ((flat + 1) * layout.in_one > layout.tensors.size())
      return Error{ErrorCode::kInvalid, "a piece of a tensor that the job does not have"};
    while (!piece.empty()) {
      if (at == layout.in_one) return Error{ErrorCode::kInvalid, "more state than the model has"};
      const std::size_t named = flat * layout.in_one + at;
      const std::size_t n = std::min<std::uint64_t>(piece.size(), bytes[named] - in_named);
      if (Status status = writer->Append(named, piece.first(n)); !status.ok()) return status;
      piece = piece.subspan(n);
      in_named += n;
      if (in_named == bytes[named]) {
        ++at;
        in_named = 0;
      }
    }
    return {};
  }
};

CheckpointStore::CheckpointStore(fs::path directory, std::uint32_t keep)
    : directory_(std::move(directory)), keep_(std::max(keep, 1u)) {}

CheckpointStore::~CheckpointStore() = default;

void CheckpointStore::Describe(const msg::Ready& ready) {
  if (!layout_) layout_ = ready;
}

void CheckpointStore::Add(const msg::StateChunk& piece) {
  if (piece.tensor == 0 && piece.offset == 0) {
    writing_ = std::make_unique<Writing>();
    writing_->round = piece.round;
    LOCKSTEP_CHECK(layout_.has_value(), "state before any worker was ready");
    writing_->layout = LayOutCheckpoint(layout_->parameter_count, layout_->state_tensors,
                                        layout_->tensors, layout_->state_names);
    for (const FileTensor& tensor : writing_->layout.tensors) {
      std::uint64_t bytes = sizeof(float);
      for (std::uint64_t extent : tensor.shape) bytes *= extent;
      writing_->bytes.push_back(bytes);
    }
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

std::function<Status()> CheckpointStore::Save(RoundId round, const JobState& state) {
  std::shared_ptr<Writing> writing = std::move(writing_);
  if (!writing || writing->round != round) {
    return [round]() -> Status {
      return Error{ErrorCode::kNotFound, fmt::format("no state after round {} has come", round)};
    };
  }
  return [directory = directory_, keep = keep_, writing, text = ToJson(state)]() -> Status {
    if (!writing->error.empty()) return Error{ErrorCode::kIo, writing->error};
    if (Status status = writing->writer->Commit(); !status.ok()) return status;
    const fs::path file = directory / Stem(writing->round);
    if (Status status = WriteWholeFile(file.string() + ".json", text); !status.ok()) {
      // The state first, if it has got there: without it the tensors count for nothing.
      std::error_code ignored;
      fs::remove(file.string() + ".json", ignored);
      fs::remove(file.string() + ".safetensors", ignored);
      return status;
    }
    RemoveOld(directory, keep);
    return {};
  };
}

void CheckpointStore::Drop(RoundId round) {
  if (writing_ && writing_->round == round) writing_.reset();
}

Result<std::optional<CheckpointStore::Loaded>> CheckpointStore::Newest() const {
  const std::vector<fs::path> valid = ValidOnes(directory_);
  if (valid.empty()) return std::optional<Loaded>();
  const fs::path& newest = valid.back();
  const auto text = ReadRegularFile(newest.string(), kMaxStateBytes);
  if (!text) return text.error();
  auto state = JobStateFromJson(*text);
  if (!state)
    return Error{state.error().code, fmt::format("{}: {}", newest.string(), state.error().message)};
  Loaded loaded;
  loaded.state = std::move(*state);
  loaded.round = RoundId(loaded.state.next_round.value - 1);
  if (Stem(loaded.round) != newest.stem().string()) {
    return Error{ErrorCode::kInvalid,
                 fmt::format("{}: it is the state after round {}", newest.string(), loaded.round)};
  }
  loaded.tensors = fs::path(newest).replace_extension(".safetensors");
  if (Status sound = CheckContents(loaded.tensors, loaded.state); !sound.ok()) {
    return sound.error();
  }
  return std::optional(std::move(loaded));
}

}  // namespace lockstep::coordinator
