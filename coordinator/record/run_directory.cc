#include "coordinator/record/run_directory.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <sstream>
#include <system_error>
#include <utility>

#include "base/regular_file.h"
#include "coordinator/record/whole_file.h"
#include "coordinator/record/write_json.h"

namespace lockstep::coordinator {
namespace {

namespace fs = std::filesystem;

constexpr const char* kRounds = "rounds.jsonl";
constexpr const char* kEvaluations = "evaluations.jsonl";
constexpr const char* kSummary = "summary.json";
constexpr const char* kTimeline = "timeline.json";
// More than a summary takes.
constexpr off_t kRoomBytes = 1 << 20;

// The opened file may have been removed and replaced by another. Then writes would be lost, or go
// to another job.
Status StillAt(const fs::path& path, int opened) {
  struct stat named {};
  struct stat ours {};
  const bool gone = ::stat(path.c_str(), &named) != 0;
  // Any other error shows when the file is written.
  if (gone && errno != ENOENT && errno != ENOTDIR) return {};
  if (!gone && (::fstat(opened, &ours) != 0 ||
                (named.st_dev == ours.st_dev && named.st_ino == ours.st_ino))) {
    return {};
  }
  return Error{ErrorCode::kIo, fmt::format("{}: was {} while the job runs", path.string(),
                                           gone ? "removed" : "replaced by another")};
}

// Takes the record of the round after which a job goes on; `kept` has the bytes before it. Samples
// that were dropped only because no further round came are not dropped after all.
void TakeUpAgain(RoundRecord& record, RunDirectory::Kept* kept) {
  std::vector<SampleRange> skipped;
  for (const SkippedRecord& part : record.skipped) {
    skipped.insert(skipped.end(), part.ranges.begin(), part.ranges.end());
  }
  std::ranges::sort(skipped);
  const auto stays = [&](const SampleRange& range) {
    return std::ranges::binary_search(skipped, range);
  };
  const auto comes_again =
      std::stable_partition(record.dropped.begin(), record.dropped.end(), stays);
  if (comes_again != record.dropped.end()) {
    record.requeued.insert(record.requeued.end(), comes_again, record.dropped.end());
    std::ranges::sort(record.requeued);
    record.dropped.erase(comes_again, record.dropped.end());
    kept->last_line = RoundLine(record) + '\n';
    kept->last_line_at = kept->rounds_bytes;
  }
}

}  // namespace

Result<std::unique_ptr<RunDirectory>> RunDirectory::Open(const fs::path& path, bool resume) {
  const auto unusable = [](const fs::path& what, const std::string& why) {
    return Error{ErrorCode::kInvalid, fmt::format("{}: {}", what.string(), why)};
  };
  std::error_code error;
  if (!resume) {
    fs::create_directories(path / "checkpoints", error);
    if (error) return unusable(path, "cannot make the run directory: " + error.message());
  } else if (!fs::is_directory(path / "checkpoints", error)) {
    return Error{ErrorCode::kNotFound,
                 fmt::format("--resume: {} is no run directory", path.string())};
  }
  const fs::path lock_path = path / "lock";
  OwnedFd lock(::open(lock_path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
  if (lock.get() < 0) return unusable(lock_path, std::strerror(errno));
  if (::flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) {
      return unusable(lock_path, fmt::format("cannot be locked: {}", std::strerror(errno)));
    }
    return Error{
        ErrorCode::kRefused,
        fmt::format("{}: another coordinator is writing to this run directory", path.string())};
  }
  OwnedFd folder(::open(path.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (folder.get() < 0) return unusable(path, std::strerror(errno));
  std::unique_ptr<RunDirectory> directory(
      new RunDirectory(path, std::move(folder), std::move(lock)));
  if (!resume) {
    if (Status fresh = directory->Begin(); !fresh.ok()) return fresh.error();
  }
  directory->KeepRoom();
  return directory;
}

RunDirectory::RunDirectory(fs::path path, OwnedFd folder, OwnedFd lock)
    : path_(std::move(path)),
      folder_(std::move(folder)),
      lock_(std::move(lock)),
      rounds_{kRounds},
      evaluations_{kEvaluations} {}

// Checkpoints of an earlier job would be newer than those of this one, and the first to be kept.
Status RunDirectory::Begin() {
  const auto refused = [this](const char* what) {
    return Error{ErrorCode::kRefused, fmt::format("{}: holds {}", path_.string(), what)};
  };
  if (fs::exists(path_ / kRounds)) {
    return refused(
        "the rounds of an earlier job; choose another --run-dir or continue it with --resume");
  }
  constexpr std::string_view kOfRound = "round-";  // and its number: a checkpoint of this job's
  constexpr const char* kRest =
      "checkpoints or evaluations of an earlier job, whose rounds.jsonl is gone; choose another "
      "--run-dir";
  if (fs::exists(path_ / kEvaluations)) return refused(kRest);
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(checkpoints(), ignored)) {
    const std::string stem = entry.path().stem().string();
    const bool numbered = stem.starts_with(kOfRound) && stem.size() > kOfRound.size() &&
                          stem.find_first_not_of("0123456789", kOfRound.size()) == stem.npos;
    if (numbered && entry.path().extension() == ".json") return refused(kRest);
  }
  RemovePartialFiles();
  // A job that failed before its first round has left a summary.
  fs::remove(path_ / kSummary, ignored);
  return {};
}

// Left behind by a coordinator that was killed while it wrote a checkpoint.
void RunDirectory::RemovePartialFiles() {
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(checkpoints(), ignored)) {
    if (entry.path().extension() == ".partial") fs::remove(entry.path(), ignored);
  }
}

// Where the file system cannot do that, WriteLast takes what room there is.
void RunDirectory::KeepRoom() {
  OwnedFd room(::open(path_.c_str(), O_TMPFILE | O_WRONLY | O_CLOEXEC, 0600));
  if (room.get() >= 0 && ::fallocate(room.get(), 0, 0, kRoomBytes) == 0) room_ = std::move(room);
}

Status RunDirectory::Held() const { return StillAt(path_, folder_.get()); }

Status RunDirectory::WriteLast(std::string_view name, std::string_view text) {
  room_ = OwnedFd();
  return WriteFile(name, text);
}

Status RunDirectory::WriteFile(std::string_view name, std::string_view text) {
  if (Status held = Held(); !held.ok()) return held;
  return WriteWholeFile(path_ / name, text);
}

Result<std::string> RunDirectory::ReadFile(std::string_view name) const {
  const fs::path path = path_ / name;
  auto in = OpenRegularFile(path.string());
  if (!in) return in.error();
  std::ostringstream text;
  text << in->rdbuf();
  return text.str();
}

Status RunDirectory::Complete(std::span<const JournalEntry> entries) {
  const fs::path path = path_ / kRounds;
  std::uint64_t lines = 0;
  std::uint64_t whole = 0;  // bytes
  std::uint64_t there = 0;
  if (fs::exists(path)) {
    auto in = OpenRegularFile(path.string());
    if (!in) return in.error();
    for (std::string line; std::getline(*in, line) && !in->eof(); ++lines) whole += line.size() + 1;
    there = fs::file_size(path);
  }
  if (whole < there) fs::resize_file(path, whole);  // its last line was cut off
  for (const JournalEntry& entry : entries) {
    if (!entry.record || entry.record->round.value < lines) continue;
    if (entry.record->round.value > lines) {
      return Error{
          ErrorCode::kInvalid,
          fmt::format("{}: has the records of {} rounds, the journal goes on with round {}",
                      path.string(), lines, entry.record->round)};
    }
    if (Status appended = AppendRound(RoundLine(*entry.record)); !appended) return appended;
    ++lines;
  }
  rounds_.file = nullptr;  // it may be cut back
  return {};
}

Result<RunDirectory::Kept> RunDirectory::KeepOf(const JobState& state) const {
  const std::uint64_t counted = state.totals.samples_counted;
  return Keep(state.next_round, counted, SettledSamples(state.sampler) - counted);
}

Result<RunDirectory::Kept> RunDirectory::Keep(RoundId next, std::uint64_t counted,
                                              std::uint64_t skipped, bool ended) const {
  Kept kept;
  if (next == RoundId(0)) return kept;  // the file may not be there yet
  auto lines = OpenRegularFile((path_ / kRounds).string());
  if (!lines) return lines.error();
  std::uint64_t round = 0;
  std::uint64_t counted_there = 0;
  std::uint64_t skipped_there = 0;
  const auto wrong = [&](const std::string& why) {
    return Error{ErrorCode::kInvalid, fmt::format("{}: {}", (path_ / kRounds).string(), why)};
  };
  for (std::string line; round < next.value && std::getline(*lines, line); ++round) {
    auto record = RoundFromLine(line);
    // The last line of a file that does not end with one was cut off.
    if (lines->eof()) return wrong(fmt::format("line {} is cut off", round + 1));
    if (!record) return wrong(fmt::format("line {}: {}", round + 1, record.error().message));
    if (record->round.value != round) {
      return wrong(fmt::format("line {} is the record of round {}, not {}", round + 1,
                               record->round, round));
    }
    counted_there += record->samples;
    for (const SkippedRecord& part : record->skipped) skipped_there += SizeOf(part.ranges);
    if (round + 1 == next.value && !ended) TakeUpAgain(*record, &kept);
    kept.requeued += SizeOf(record->requeued);
    kept.latest =
        std::max({kept.latest, record->start, record->commit, record->applied.value_or(0)});
    kept.train_loss = record->loss;
    kept.metrics = record->metrics;
    kept.rounds_bytes += line.size() + 1;
  }
  if (round < next.value) {
    return wrong(
        fmt::format("has the records of {} rounds, the checkpoint is that after {}", round, next));
  }
  if (counted_there != counted) {
    return wrong(fmt::format("its rounds before {} have {} samples, the checkpoint knows of {}",
                             next, counted_there, counted));
  }
  if (skipped_there != skipped) {
    return wrong(fmt::format("its rounds before {} skip {} samples, the checkpoint knows of {}",
                             next, skipped_there, skipped));
  }
  if (!fs::exists(path_ / kEvaluations)) return kept;
  auto text = ReadFile(kEvaluations);
  if (!text) return text.error();
  std::istringstream evaluations(*text);
  for (std::string line; std::getline(evaluations, line);) {
    const auto json = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    const bool good =
        json.is_object() && json.contains("round") && json["round"].is_number_unsigned();
    // A stop of the machine may have cut off the last line.
    if (!good && evaluations.eof()) break;
    if (!good) {
      return Error{ErrorCode::kInvalid,
                   fmt::format("{}: a line is not a record", (path_ / kEvaluations).string())};
    }
    if (json["round"].get<std::uint64_t>() >= next.value) break;
    const auto number = [&](const char* key) {
      return json.contains(key) && json[key].is_number() ? json[key].get<double>() : std::nan("");
    };
    kept.evaluated.emplace();
    kept.evaluated->round = RoundId(json["round"].get<std::uint64_t>());
    kept.evaluated->loss = number("loss");
    kept.evaluated->accuracy = number("accuracy");
    kept.evaluations += line + '\n';
  }
  return kept;
}

Status RunDirectory::CutBack(const Kept& kept) {
  RemovePartialFiles();
  if (!kept.evaluations.empty() || fs::exists(path_ / kEvaluations)) {
    if (Status cut = WriteFile(kEvaluations, kept.evaluations); !cut.ok()) return cut;
  }
  timeline_ = Timeline();
  std::error_code ignored;
  fs::remove(path_ / kSummary, ignored);
  fs::remove(path_ / kTimeline, ignored);
  // Of a job that has closed no round there is no file.
  if (kept.rounds_bytes == 0 && !fs::exists(path_ / kRounds)) return {};
  if (Status cut = CutRounds(kept); !cut.ok()) return cut;
  auto rounds = OpenRegularFile((path_ / kRounds).string());
  if (!rounds) return rounds.error();
  for (std::string line; std::getline(*rounds, line);) {
    const auto record = RoundFromLine(line);
    if (!record) continue;  // Keep has read it
    // No job needs a timeline; the next round is told why there is none.
    if (!AppendTimeline(*record).ok()) break;
  }
  return {};
}

// The last line is written over the old one, which is as long or nearly so: whenever this process
// ends, there are as many whole lines as before.
Status RunDirectory::CutRounds(const Kept& kept) {
  const fs::path path = path_ / kRounds;
  const OwnedFd file(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
  if (file.get() < 0) return IoError(path, "cannot open");
  std::uint64_t bytes = kept.rounds_bytes;
  if (!kept.last_line.empty()) {
    bytes = kept.last_line_at;
    for (std::string_view left = kept.last_line; !left.empty();) {
      const ssize_t wrote =
          ::pwrite(file.get(), left.data(), left.size(), static_cast<off_t>(bytes));
      if (wrote < 0 && errno == EINTR) continue;
      if (wrote < 0) return IoError(path, "cannot write");
      left.remove_prefix(static_cast<std::size_t>(wrote));
      bytes += static_cast<std::uint64_t>(wrote);
    }
  }
  if (::ftruncate(file.get(), static_cast<off_t>(bytes)) != 0) {
    return IoError(path, "cannot cut back");
  }
  if (::fsync(file.get()) != 0) return IoError(path, "cannot sync");
  return {};
}

Status RunDirectory::Append(Lines& lines, std::string line) {
  if (lines.failed) return *lines.failed;
  const fs::path path = path_ / lines.name;
  const auto failed = [&](const char* doing) {
    lines.failed = IoError(path, doing);
    return *lines.failed;
  };
  if (Status there = lines.file ? StillAt(path, lines.file->fd.get()) : Held(); !there.ok()) {
    lines.failed = there.error();
    return there;
  }
  if (!lines.file) {
    OwnedFd opened(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
    if (opened.get() < 0) return failed("cannot open");
    lines.file = std::make_shared<Opened>(std::move(opened));
  }
  const int file = lines.file->fd.get();
  line += '\n';
  std::string_view left = line;
  while (!left.empty()) {
    const ssize_t wrote = ::write(file, left.data(), left.size());
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0) {
      const Error error = failed("cannot write");
      // The written part of the line is removed.
      const off_t end = ::lseek(file, 0, SEEK_END);
      const auto part = static_cast<off_t>(line.size() - left.size());
      if (end >= part && ::ftruncate(file, end - part) != 0) errno = 0;
      return error;
    }
    left.remove_prefix(static_cast<std::size_t>(wrote));
  }
  return {};
}

Status RunDirectory::AppendRound(const std::string& line) { return Append(rounds_, line); }

Status RunDirectory::AppendEvaluation(const std::string& line) {
  return Append(evaluations_, line);
}

std::function<Status()> RunDirectory::Sync() const {
  std::vector<std::pair<std::shared_ptr<Opened>, fs::path>> files;
  for (const Lines* lines : {&rounds_, &evaluations_}) {
    if (lines->failed) return [error = *lines->failed]() -> Status { return error; };
    if (lines->file) files.emplace_back(lines->file, path_ / lines->name);
  }
  return [files = std::move(files)]() -> Status {
    for (const auto& [file, path] : files) {
      if (Status there = StillAt(path, file->fd.get()); !there.ok()) return there;
      if (::fdatasync(file->fd.get()) != 0) return IoError(path, "cannot be brought to the disk");
      if (file->name_synced) continue;
      if (Status named = SyncFolderOf(path); !named.ok()) return named;
      file->name_synced = true;
    }
    return {};
  };
}

Status RunDirectory::AppendTimeline(const RoundRecord& record) {
  Timeline& timeline = timeline_;
  if (timeline.failed) return *timeline.failed;
  const fs::path path = path_ / kTimeline;
  const auto failed = [&](const char* doing) {
    timeline.failed = IoError(path, doing);
    return *timeline.failed;
  };
  std::string text;
  if (timeline.file.get() < 0) {
    if (Status held = Held(); !held.ok()) {
      timeline.failed = held.error();
      return held;
    }
    const int flags = O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC;
    timeline.file = OwnedFd(::open(path.c_str(), flags, 0644));
    if (timeline.file.get() < 0) return failed("cannot open");
    text = kTimelineHead;
  }
  text += timeline.text.Add(record);
  const std::size_t events = text.size();
  text += kTimelineTail;
  for (std::size_t wrote = 0; wrote < text.size();) {
    const ssize_t now = ::pwrite(timeline.file.get(), text.data() + wrote, text.size() - wrote,
                                 timeline.end + static_cast<off_t>(wrote));
    if (now < 0 && errno == EINTR) continue;
    if (now < 0) {
      const Error error = failed("cannot write");
      EndTimelineBefore();
      return error;
    }
    wrote += static_cast<std::size_t>(now);
  }
  timeline.end += static_cast<off_t>(events);
  return {};
}

// The tail takes no room that was not the file's before.
void RunDirectory::EndTimelineBefore() {
  const auto tail = static_cast<off_t>(kTimelineTail.size());
  if (timeline_.end == 0) {
    ::unlink((path_ / kTimeline).c_str());
    return;
  }
  if (::pwrite(timeline_.file.get(), kTimelineTail.data(), kTimelineTail.size(), timeline_.end) <
          0 ||
      ::ftruncate(timeline_.file.get(), timeline_.end + tail) != 0) {
    errno = 0;  // the first error is the one that is told
  }
}

}  // namespace lockstep::coordinator
