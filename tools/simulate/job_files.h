// The files of a simulated job's coordinator: journal, records and checkpoints. The program's own
// code writes and reads them, in a folder of their own. So a fault can tear or change what is on
// disk: what the next coordinator reads of it is what the program would read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/job_config.h"
#include "base/random.h"
#include "coordinator/checkpoint/checkpoint_store.h"
#include "coordinator/core/coordinator.h"
#include "coordinator/journal/journal.h"
#include "coordinator/record/run_directory.h"

namespace lockstep::simulate {

class JobFiles {
 public:
  enum class File : std::uint8_t { kJournal, kRecords, kCheckpoint };

  // Begins a job. `parent`: where the folder is made; it is removed at the end.
  JobFiles(const coordinator::StartParameters& start, const std::filesystem::path& parent,
           std::uint64_t seed);
  ~JobFiles();
  JobFiles(const JobFiles&) = delete;
  JobFiles& operator=(const JobFiles&) = delete;

  // --- as the coordinator's program (coordinator/shell/action_runner.cc). An error of the disk
  // ends the simulation: none is expected.

  // The line on disk, where its writer was to die within it (TearNext).
  enum class Written : std::uint8_t { kWhole, kTorn, kTornAtItsEnd };
  Written Note(const coordinator::JournalEntry& entry);
  Written Append(const coordinator::RoundRecord& record);
  void Append(const coordinator::EvaluationRecord& record);
  void CutTo(const coordinator::JobState& state);
  void Add(const msg::Ready& agreed, const msg::StateChunk& piece);
  void Save(RoundId round, const coordinator::JobState& state);
  void Drop(RoundId round);

  // --- deaths

  struct Read {
    std::string error;  // why this coordinator does not start; the rest is empty then
    std::string warning;
    std::optional<coordinator::JobState> checkpoint;
    std::vector<coordinator::JournalEntry> journal;
  };
  // The process is gone, and the next one reads what is there.
  Read Start(Term term, bool reattach);

  // --- faults

  // The next line of the file ends somewhere within it.
  void TearNext(File file);
  bool ToTear(File file) const { return tear_ == file; }
  // Changes one bit of the file; of the newest checkpoint. False: there is none.
  bool Flip(File file);
  // As if the user had a copy from before that.
  void Restore();
  // By which an error names it.
  std::string NameOf(File file) const;

 private:
  std::filesystem::path PathOf(File file) const;
  Written Tear(File file, std::uint64_t before);

  const std::filesystem::path folder_;
  const JobSection job_;
  const std::uint32_t keep_;
  RandomStream random_;
  std::unique_ptr<coordinator::RunDirectory> directory_;
  std::unique_ptr<coordinator::CheckpointStore> checkpoints_;
  std::unique_ptr<coordinator::JournalFile> journal_;
  bool described_ = false;
  std::optional<File> tear_;
  struct Original {
    std::filesystem::path path;
    std::string bytes;
  };
  std::optional<Original> original_;
};

// In words that are equal when the states, or entries, are.
std::string InWords(const coordinator::JobState& state);
std::string InWords(const coordinator::JournalEntry& entry);

}  // namespace lockstep::simulate
