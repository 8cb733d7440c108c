// The run directory: what a job leaves behind. It has one writer, which holds a lock;
// docs/reference/run-directory.md describes the files. Errors are one line with the path and what
// the operating system said. Control thread only.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "coordinator/job/job_state.h"
#include "coordinator/job/records.h"
#include "coordinator/record/timeline.h"
#include "coordinator/record/whole_file.h"

namespace lockstep::coordinator {

class RunDirectory {
 public:
  // Takes the directory's lock. It makes the directory and its parents, unless `resume`: then it
  // must exist, and nothing in it changes before CutBack. Errors: kInvalid, it is not a run
  // directory or cannot be written; kRefused, another job holds it, or it has records of an earlier
  // job and `resume` is false.
  static Result<std::unique_ptr<RunDirectory>> Open(const std::filesystem::path& path, bool resume);
  RunDirectory(const RunDirectory&) = delete;
  RunDirectory& operator=(const RunDirectory&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path checkpoints() const { return path_ / "checkpoints"; }

  // kIo, with the line: the folder was removed, or another one has taken its place, which is not
  // this job's to write to. Every write by name asks this first.
  Status Held() const;

  // Replaces a whole file: written beside it, synced, renamed.
  Status WriteFile(std::string_view name, std::string_view text);
  // The same for a file that must be written even when the disk is full: Open has reserved room for
  // it, in a file without a name.
  Status WriteLast(std::string_view name, std::string_view text);
  Result<std::string> ReadFile(std::string_view name) const;

  // Appends to rounds.jsonl the records that it lacks: of a coordinator that was killed, what it
  // had noted as committed and not yet written as closed. kInvalid: some are in neither.
  Status Complete(std::span<const JournalEntry> entries);

  // Of the rounds before `next`, which a resumed job goes on from.
  struct Kept {
    std::uint64_t rounds_bytes = 0;  // how much of rounds.jsonl, which may be gigabytes
    // The last of them, where it is to say something else from now on, and where it begins: what
    // was dropped for want of a further round comes again.
    std::string last_line;
    std::uint64_t last_line_at = 0;
    std::uint64_t requeued = 0;  // samples, by all of them as they are from now on
    std::string evaluations;
    double latest = 0;  // time in them, seconds since the job's start
    // The last records among them.
    std::optional<double> train_loss = std::nullopt;
    std::vector<Metric> metrics = {};
    std::optional<EvaluationRecord> evaluated = std::nullopt;
  };
  // Changes nothing. kInvalid, with the line: rounds.jsonl has not each of them once, in order, and
  // so many samples in all that were counted and that were skipped. `ended`: no round follows.
  Result<Kept> Keep(RoundId next, std::uint64_t counted, std::uint64_t skipped,
                    bool ended = false) const;
  // The same of what this state goes on from.
  Result<Kept> KeepOf(const JobState& state) const;
  // Cuts rounds.jsonl, evaluations.jsonl and timeline.json back to them. It removes the
  // half-written files of a coordinator that was killed, and summary.json: the job has not ended.
  Status CutBack(const Kept& kept);

  // A line is there as a whole or not at all. After an error the file takes no more lines, so that
  // it has no gaps. A file that was removed or replaced is an error. `line`: RoundLine of a record.
  Status AppendRound(const std::string& line);
  // Returns a function to call on any thread, once: it syncs what was appended so far. A checkpoint
  // that a resume finds must not know of rounds whose lines a stop of the machine has taken, or
  // that were never written.
  std::function<Status()> Sync() const;
  Status AppendEvaluation(const std::string& line);  // EvaluationLine of a record

  // timeline.json (Chrome trace format, opens in Perfetto) with this round, too: one write, after
  // which the file is whole again. After an error the timeline takes no more rounds.
  Status AppendTimeline(const RoundRecord& record);

 private:
  struct Opened {
    explicit Opened(OwnedFd opened) : fd(std::move(opened)) {}
    const OwnedFd fd;
    std::atomic<bool> name_synced = false;
  };
  // A file that grows by lines.
  struct Lines {
    const char* name;
    // Null before the first line; Sync's function has it too, so that none opens the file anew.
    std::shared_ptr<Opened> file = nullptr;
    std::optional<Error> failed = std::nullopt;
  };

  // timeline.json, begun with its first round.
  struct Timeline {
    OwnedFd file = OwnedFd();
    TimelineText text = {};
    off_t end = 0;  // where the next events go: in the place of the document's tail
    std::optional<Error> failed = std::nullopt;
  };

  RunDirectory(std::filesystem::path path, OwnedFd folder, OwnedFd lock);
  Status Append(Lines& lines, std::string line);
  void KeepRoom();
  void RemovePartialFiles();
  Status CutRounds(const Kept& kept);
  Status Begin();  // of a job that is not resumed
  void EndTimelineBefore();

  std::filesystem::path path_;
  OwnedFd folder_;  // what Held compares: while it is open, no other one has its number
  OwnedFd lock_;
  OwnedFd room_;  // see WriteLast
  Lines rounds_;
  Lines evaluations_;
  Timeline timeline_;
};

}  // namespace lockstep::coordinator
