#include "coordinator/run_directory.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <system_error>
#include <utility>

#include "coordinator/checkpoint/whole_file.h"
#include "coordinator/record_json.h"
#include "coordinator/timeline.h"

namespace lockstep::coordinator {
namespace {

namespace fs = std::filesystem;

constexpr const char* kRounds = "rounds.jsonl";
constexpr const char* kEvaluations = "evaluations.jsonl";

Error IoError(const fs::path& path, const std::string& doing) {
  // A stream may have lost it.
  if (errno == 0) return {ErrorCode::kIo, fmt::format("{}: {}", path.string(), doing)};
  return {ErrorCode::kIo, fmt::format("{}: {}: {}", path.string(), doing, std::strerror(errno))};
}

// The latest of the times in a line, which is one of rounds.jsonl.
double LatestTime(const nlohmann::json& line) {
  const auto times = line.find("times");
  if (times == line.end() || !times->is_object()) return 0;
  double latest = 0;
  for (const char* key : {"start", "commit", "applied"}) {
    const auto value = times->find(key);
    if (value != times->end() && value->is_number())
      latest = std::max(latest, value->get<double>());
  }
  return latest;
}

}  // namespace

Result<std::unique_ptr<RunDirectory>> RunDirectory::Open(const fs::path& path, bool resume) {
  std::error_code error;
  fs::create_directories(path / "checkpoints", error);
  if (error)
    return Error{ErrorCode::kIo, fmt::format("{}: cannot make the run directory: {}", path.string(),
                                             error.message())};
  const fs::path lock_path = path / "lock";
  const int fd = ::open(lock_path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (fd < 0) return IoError(lock_path, "cannot open");
  if (::flock(fd, LOCK_EX | LOCK_NB) != 0) {
    ::close(fd);
    return Error{
        ErrorCode::kRefused,
        fmt::format("{}: another coordinator is writing to this run directory", path.string())};
  }
  std::unique_ptr<RunDirectory> directory(new RunDirectory(path, fd));
  if (!resume && fs::exists(path / kRounds)) {
    return Error{ErrorCode::kRefused, fmt::format("{}: holds the rounds of an earlier job; choose "
                                                  "another --run-dir or continue it with --resume",
                                                  path.string())};
  }
  // Left behind by a coordinator that was killed while it wrote a checkpoint.
  for (const auto& entry : fs::directory_iterator(path / "checkpoints", error)) {
    std::error_code ignored;
    if (entry.path().extension() == ".partial") fs::remove(entry.path(), ignored);
  }
  return directory;
}

RunDirectory::RunDirectory(fs::path path, int lock_fd)
    : path_(std::move(path)), lock_fd_(lock_fd) {}

RunDirectory::~RunDirectory() { ::close(lock_fd_); }

Status RunDirectory::WriteFile(std::string_view name, std::string_view text) {
  return WriteWholeFile(path_ / name, text);
}

Result<std::string> RunDirectory::ReadFile(std::string_view name) const {
  const fs::path path = path_ / name;
  std::ifstream in(path, std::ios::binary);
  if (!in) return Error{ErrorCode::kNotFound, fmt::format("{}: cannot open", path.string())};
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

Result<double> RunDirectory::CutBackFile(const char* name, RoundId next) {
  if (!fs::exists(path_ / name)) return 0.0;
  auto text = ReadFile(name);
  if (!text) return text.error();
  std::string kept;
  double latest = 0;
  std::istringstream lines(*text);
  for (std::string line; std::getline(lines, line);) {
    const auto json = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    // A line that a stop of the machine cut off, and all after it, is not a closed round that the
    // checkpoint knows of.
    if (!json.is_object() || !json.contains("round") || !json["round"].is_number_unsigned()) break;
    if (json["round"].get<std::uint64_t>() >= next.value) break;
    latest = std::max(latest, LatestTime(json));
    kept += line;
    kept += '\n';
  }
  if (Status status = WriteFile(name, kept); !status.ok()) return status.error();
  return latest;
}

Result<double> RunDirectory::CutBack(RoundId next) {
  rounds_.reset();
  evaluations_.reset();
  if (auto cut = CutBackFile(kEvaluations, next); !cut) return cut.error();
  return CutBackFile(kRounds, next);
}

Status RunDirectory::AppendLine(File& file, const char* name, const std::string& line) {
  const fs::path path = path_ / name;
  if (!file) file.reset(std::fopen(path.c_str(), "ae"));
  if (!file) return IoError(path, "cannot open");
  if (std::fwrite(line.data(), 1, line.size(), file.get()) != line.size() ||
      std::fputc('\n', file.get()) == EOF || std::fflush(file.get()) != 0) {
    return IoError(path, "cannot write");
  }
  return {};
}

Status RunDirectory::AppendRound(const RoundRecord& record) {
  return AppendLine(rounds_, kRounds, RoundLine(record));
}

Status RunDirectory::AppendEvaluation(const EvaluationRecord& record) {
  return AppendLine(evaluations_, kEvaluations, EvaluationLine(record));
}

Status RunDirectory::Sync() {
  for (const auto& [file, name] :
       {std::pair(rounds_.get(), kRounds), std::pair(evaluations_.get(), kEvaluations)}) {
    if (file != nullptr && ::fdatasync(::fileno(file)) != 0) {
      return IoError(path_ / name, "cannot be brought to the disk");
    }
  }
  return {};
}

Status RunDirectory::WriteTimeline() {
  if (!fs::exists(path_ / kRounds)) return {};
  const fs::path temporary = path_ / "timeline.json.tmp";
  std::ifstream rounds(path_ / kRounds);
  {
    std::ofstream out(temporary, std::ios::trunc);
    TimelineFromRounds(rounds, out);
    errno = 0;
    out.flush();
    if (!out) {
      const Error error = IoError(temporary, "cannot write");
      ::unlink(temporary.c_str());
      return error;
    }
  }
  if (::rename(temporary.c_str(), (path_ / "timeline.json").c_str()) != 0)
    return IoError(temporary, "cannot rename");
  return {};
}

}  // namespace lockstep::coordinator
