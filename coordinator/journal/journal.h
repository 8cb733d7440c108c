// The journal of a run directory, from which a coordinator that takes over continues. It has one
// line for each commit, written before anybody hears of the commit. docs/reference/run-directory.md
// has its form.
//
// A line is a checksum and a JSON object. The first says whose journal it is, each other one is an
// entry (job_state.h). The fields that are the same in all entries stand in the first one only.
// When the file has grown to kMostBytes, it is written anew without the entries from which no
// coordinator would continue. So it is bounded, whatever the job's length.
//
// A process that is killed loses nothing; with `sync` neither does a machine. Control thread only.
#pragma once

#include <cstdint>
#include <deque>
#include <filesystem>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "coordinator/job/job_state.h"
#include "coordinator/record/whole_file.h"

namespace lockstep::coordinator {

class JournalFile {
 public:
  static constexpr const char* kName = "journal";
  static constexpr std::uint64_t kMostBytes = 8u << 20;
  // Entries that stay: nobody has the parameters of older rounds while others train on.
  static constexpr std::size_t kKept = 4;

  struct Contents {
    std::string run_id;
    Term term;
    std::vector<JournalEntry> entries;  // those that still hold, by ascending round
  };
  // The contents of a file. A last line that was not written to its end is left out. kInvalid, one
  // line with the file and the line: it was changed or damaged. kNotFound: there is none.
  static Result<Contents> Read(const std::filesystem::path& folder);
  static Result<Contents> Parse(std::string_view text);

  // Takes the place of the file that is there, if any.
  static Result<std::unique_ptr<JournalFile>> Begin(const std::filesystem::path& folder,
                                                    const Contents& contents, bool sync);

  // An error stays: no further entry is taken.
  Status Append(const JournalEntry& entry);

  // For a standby: the journal as it would be written anew, and the line of the last entry.
  std::string Text() const;
  const std::string& last_line() const { return last_line_; }

 private:
  JournalFile(std::filesystem::path path, std::string first_line, bool sync)
      : path_(std::move(path)), first_line_(std::move(first_line)), sync_(sync) {}
  std::string LineOf(const JournalEntry& entry, bool lasting) const;
  Status WriteAnew();
  Status Write(std::string_view line);

  const std::filesystem::path path_;
  const std::string first_line_;
  const bool sync_;
  OwnedFd file_;
  std::uint64_t bytes_ = 0;
  std::deque<JournalEntry> kept_;  // the last ones, at most kKept
  std::string last_line_;
  Status failed_;
};

// Takes the lines of a journal as they come.
class JournalReader {
 public:
  // Keeps the last `most` entries.
  explicit JournalReader(std::size_t most);
  ~JournalReader();

  // Without the newline. kInvalid: this is no line of a journal, and the reader is of no use any
  // more.
  Status Take(std::string_view line);
  const JournalFile::Contents& contents() const { return contents_; }

 private:
  const std::size_t most_;
  bool begun_ = false;
  std::unique_ptr<nlohmann::json> lasting_;  // of the entries so far
  JournalFile::Contents contents_;
};

}  // namespace lockstep::coordinator
