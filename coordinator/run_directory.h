// The run directory: what a job leaves behind. One writer, held by a lock; docs/run-directory.md
// describes the files. Errors are one line with the path and what the operating system said.
// Control thread only.
#pragma once

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

#include "base/ids.h"
#include "base/result.h"
#include "coordinator/records.h"

namespace lockstep::coordinator {

class RunDirectory {
 public:
  // Makes the directory (parents too) and takes its lock. kRefused when another job holds it, or
  // when it has the rounds of an earlier job and `resume` is false.
  static Result<std::unique_ptr<RunDirectory>> Open(const std::filesystem::path& path, bool resume);
  ~RunDirectory();
  RunDirectory(const RunDirectory&) = delete;
  RunDirectory& operator=(const RunDirectory&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path checkpoints() const { return path_ / "checkpoints"; }

  // Replaces a whole file: written beside it, synced, renamed.
  Status WriteFile(std::string_view name, std::string_view text);
  Result<std::string> ReadFile(std::string_view name) const;

  // Cuts rounds.jsonl and evaluations.jsonl back to the rounds before `next`. Returns the latest
  // time in the lines that stay, seconds since the job's start.
  Result<double> CutBack(RoundId next);

  Status AppendRound(const RoundRecord& record);
  // What was appended is on the disk. A checkpoint that a resume finds must not know of rounds
  // whose lines a stop of the machine has taken.
  Status Sync();
  Status AppendEvaluation(const EvaluationRecord& record);

  // Writes timeline.json (Chrome trace format, opens in Perfetto) from rounds.jsonl.
  Status WriteTimeline();

 private:
  struct FileCloser {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  using File = std::unique_ptr<std::FILE, FileCloser>;

  RunDirectory(std::filesystem::path path, int lock_fd);
  Status AppendLine(File& file, const char* name, const std::string& line);
  Result<double> CutBackFile(const char* name, RoundId next);

  std::filesystem::path path_;
  int lock_fd_;
  File rounds_;
  File evaluations_;
};

}  // namespace lockstep::coordinator
