#include "worker/runtime/residual_files.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "base/digest.h"
#include "base/log.h"
#include "worker/runtime/open_file.h"
#include "worker/runtime/rescue.h"

namespace lockstep::worker {
namespace {

namespace fs = std::filesystem;

using Place = ResidualFiles::Place;

Error FileError(const fs::path& path, const char* doing) {
  return {ErrorCode::kIo, fmt::format("{}: {}: {}", path.string(), doing, std::strerror(errno))};
}

fs::path FolderOf(const Place& place) { return fs::path(place.run_dir) / "checkpoints"; }

std::string StemOf(RoundId round) { return fmt::format("round-{:010}", round.value); }

std::string EndOf(WorkerId worker) { return fmt::format(".residual-{}.safetensors", worker); }

fs::path PathOf(const Place& place, RoundId round) {
  return FolderOf(place) / (StemOf(round) + EndOf(place.worker));
}

// All that is in front of the values. It follows from what the file is of, so it is not parsed: a
// file that begins in another way is none of this.
std::string HeadOf(const Place& place, RoundId round, std::span<const float> values) {
  DigestStream digest;
  digest.Update(std::as_bytes(values));
  std::string json = fmt::format(
      R"({{"__metadata__":{{"format":"lockstep-residual","run_id":"{}","round":"{}","worker":"{}",)"
      R"("digest":"{}"}},"residual":{{"dtype":"F32","shape":[{}],"data_offsets":[0,{}]}}}})",
      place.run_id, round, place.worker, ToString(digest.Digest()), values.size(),
      values.size_bytes());
  json.resize((json.size() + 7) / 8 * 8, ' ');
  const std::uint64_t length = json.size();
  std::string head(sizeof length, '\0');
  std::memcpy(head.data(), &length, sizeof length);
  return head + json;
}

bool WriteAll(int file, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t wrote = ::write(file, bytes.data(), bytes.size());
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0) return false;
    bytes = bytes.subspan(static_cast<std::size_t>(wrote));
  }
  return true;
}

bool ReadAll(int file, std::span<std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t got = ::read(file, bytes.data(), bytes.size());
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    bytes = bytes.subspan(static_cast<std::size_t>(got));
  }
  return true;
}

// Of this worker, whose checkpoints are gone.
void RemoveOldOnes(const Place& place, RoundId newest) {
  const std::string end = EndOf(place.worker);
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(FolderOf(place), error)) {
    const std::string name = entry.path().filename().string();
    if (!name.ends_with(end) || !name.starts_with("round-")) continue;
    const std::string stem = name.substr(0, name.size() - end.size());
    if (stem >= StemOf(newest)) continue;
    std::error_code ignored;
    if (!fs::exists(FolderOf(place) / (stem + ".json"), ignored)) fs::remove(entry, ignored);
  }
}

}  // namespace

Status SaveResidual(const Place& place, RoundId round, std::span<const float> values) {
  const fs::path path = PathOf(place, round);
  const fs::path partial = path.string() + ".partial";
  const std::string head = HeadOf(place, round, values);
  {
    const OpenFile file(partial, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW);
    if (file.get() < 0) return FileError(partial, "cannot open");
    const bool written = WriteAll(file.get(), std::as_bytes(std::span(head))) &&
                         WriteAll(file.get(), std::as_bytes(values)) && ::fsync(file.get()) == 0;
    if (!written) {
      const Error error = FileError(partial, "cannot write");
      ::unlink(partial.c_str());
      return error;
    }
  }
  if (::rename(partial.c_str(), path.c_str()) != 0) return FileError(path, "cannot rename");
  RemoveOldOnes(place, round);
  return {};
}

Status LoadResidual(const Place& place, RoundId round, std::span<float> values) {
  const fs::path path = PathOf(place, round);
  const OpenFile file(path, O_RDONLY | O_NONBLOCK | O_NOFOLLOW);
  if (file.get() < 0 && errno == ENOENT) {
    return Error{ErrorCode::kNotFound, fmt::format("{}: there is none", path.string())};
  }
  if (file.get() < 0) return FileError(path, "cannot open");
  struct stat is = {};
  std::string head = HeadOf(place, round, values);  // its length is that of the file's
  const std::size_t length = head.size() + values.size_bytes();
  const Error wrong{ErrorCode::kInvalid,
                    fmt::format("{}: it is not what worker {} of this job has kept back after "
                                "round {}, or damaged",
                                path.string(), place.worker, round)};
  if (::fstat(file.get(), &is) != 0 || !S_ISREG(is.st_mode) ||
      static_cast<std::uint64_t>(is.st_size) != length) {
    return wrong;
  }
  if (!ReadAll(file.get(), std::as_writable_bytes(std::span(head))) ||
      !ReadAll(file.get(), std::as_writable_bytes(values))) {
    return FileError(path, "cannot read");
  }
  if (head != HeadOf(place, round, values)) return wrong;
  return {};
}

ResidualFiles::~ResidualFiles() {
  if (writing_.valid()) writing_.wait();
}

void ResidualFiles::MoveTo(Place place) {
  std::lock_guard lock(mutex_);
  place_ = std::move(place);
  due_.reset();
}

void ResidualFiles::Due(RoundId round) {
  std::lock_guard lock(mutex_);
  due_ = round;
}

void ResidualFiles::StartedFrom(RoundId round) {
  std::lock_guard lock(mutex_);
  started_from_ = round;
}

void ResidualFiles::OnWork(Residual* residual) {
  std::optional<RoundId> due;
  std::optional<RoundId> from;
  {
    std::lock_guard lock(mutex_);
    due = std::exchange(due_, std::nullopt);
    from = std::exchange(started_from_, std::nullopt);
  }
  if (from) Load(*from, residual);
  if (due) Save(*due, *residual, /*wait=*/false);
}

void ResidualFiles::OnEnd(const Residual& residual) {
  std::optional<RoundId> due;
  {
    std::lock_guard lock(mutex_);
    due = std::exchange(due_, std::nullopt);
  }
  if (due) Save(*due, residual, /*wait=*/true);
  if (!writing_.valid()) return;
  if (const Status saved = writing_.get(); !saved) Warn(saved.error().message);
}

// The one before is rarely still being written: checkpoints are far apart.
void ResidualFiles::Save(RoundId round, const Residual& residual, bool wait) {
  if (writing_.valid()) {
    if (!wait && writing_.wait_for(std::chrono::seconds(0)) != std::future_status::ready) {
      return Warn(fmt::format("the one before round {} is still being written", round));
    }
    if (const Status saved = writing_.get(); !saved) Warn(saved.error().message);
  }
  if (!IsRunDirectoryOf(place_.run_dir, place_.run_id)) {
    return Warn(fmt::format("this worker does not reach the run directory, {}", place_.run_dir));
  }
  const std::span<const float> kept = residual.kept();
  copy_.assign(kept.begin(), kept.end());
  writing_ = std::async(std::launch::async, [this, place = place_, round] {
    return SaveResidual(place, round, copy_);
  });
}

void ResidualFiles::Load(RoundId round, Residual* residual) {
  std::vector<float> values(residual->kept().size());
  const Status loaded = LoadResidual(place_, round, values);
  if (loaded) {
    residual->Restore(values);
    spdlog::info("this worker goes on with what it had kept back after round {}", round);
  } else if (loaded.error().code == ErrorCode::kNotFound) {
    spdlog::info("nothing that this worker had kept back after round {} was saved", round);
  } else {
    spdlog::warn("{}: this worker goes on without it", loaded.error().message);
  }
}

void ResidualFiles::Warn(const std::string& what) {
  if (std::exchange(warned_, true)) return;
  spdlog::warn("no residual is saved beside a checkpoint: {}", what);
}

}  // namespace lockstep::worker
