#include "tools/simulate/coordinator_deaths.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <utility>

#include "base/check.h"
#include "base/sometimes.h"
#include "tools/simulate/process.h"

namespace lockstep::simulate {
namespace {

constexpr std::ptrdiff_t kKept = 4;  // entries of the journal

}  // namespace

bool Reattaches(const coordinator::StartParameters& start) {
  return start.config.job.coordinator_timeout_s != 0;
}

bool Simulation::CoordinatorDeaths::Note(const coordinator::JournalEntry& entry) {
  JobFiles* const files = simulation_->files_.get();
  const bool dies = torn_ && torn_->file == JobFiles::File::kJournal && MayDieAlone();
  if (dies) files->TearNext(JobFiles::File::kJournal);
  const auto written = files == nullptr ? JobFiles::Written::kWhole : files->Note(entry);
  if (written != JobFiles::Written::kTorn) Keep(entry);
  if (!dies || written == JobFiles::Written::kWhole) {
    const auto& on_taken_over = simulation_->hooks.on_taken_over;
    if (std::exchange(taking_over_, false) && on_taken_over) on_taken_over(entry.state);
    return true;
  }
  if (written == JobFiles::Written::kTorn) {
    Sometimes<"files: the journal ends within a line">();
  } else {
    Sometimes<"files: a commit is noted, and nobody hears of it">();
  }
  DieAlone(std::exchange(torn_, std::nullopt)->length);
  return false;
}

bool Simulation::CoordinatorDeaths::Append(const coordinator::RoundRecord& record) {
  JobFiles* const files = simulation_->files_.get();
  if (files == nullptr) return true;
  const bool dies = torn_ && torn_->file == JobFiles::File::kRecords && MayDieAlone();
  if (dies) files->TearNext(JobFiles::File::kRecords);
  if (files->Append(record) == JobFiles::Written::kWhole) return true;
  Sometimes<"files: rounds.jsonl ends within a line">();
  dies_after_ = std::exchange(torn_, std::nullopt)->length;
  return false;
}

void Simulation::CoordinatorDeaths::AfterStep() {
  if (dies_after_) DieAlone(*std::exchange(dies_after_, std::nullopt));
}

// The file keeps the last entries when it is rewritten; here it always is. The entry with which a
// term begins takes the place only of one that told less of the same.
void Simulation::CoordinatorDeaths::Keep(const coordinator::JournalEntry& entry) {
  std::erase_if(journal_, [&](const auto& e) {
    return e.state.next_round > entry.state.next_round || e.held() == entry.held() ||
           (entry.attempt && e.state.next_round == entry.state.next_round);
  });
  journal_.push_back(entry);
  if (std::ssize(journal_) > kKept) journal_.erase(journal_.begin());
}

// A user who resumes a job first ends its remaining processes.
void Simulation::CoordinatorDeaths::EndJob(Duration length) {
  if (!simulation_->disk_ || down_ || simulation_->result_) return;
  down_ = true;
  simulation_->ForgetCoordinator();
  for (const std::unique_ptr<Process>& process : simulation_->processes_) {
    process->closed = true;
    simulation_->Kill(process.get(), false);
  }
  simulation_->queue_.After(length, [this] { Resume(); });
}

void Simulation::CoordinatorDeaths::Resume() {
  journal_.clear();
  torn_.reset();
  down_ = journal_cut_ = false;
  last_commit_.reset();
  std::optional<coordinator::JobState> checkpoint = simulation_->disk_->state;
  if (simulation_->files_) checkpoint = ReadFiles(/*reattach=*/false).checkpoint;
  simulation_->StartNextCoordinator(journal_, std::move(checkpoint));
  if (simulation_->hooks.on_resumed) simulation_->hooks.on_resumed(*simulation_->disk_);
  for (std::uint32_t m = 0; m < simulation_->machines_.size(); ++m) {
    const Process* last = simulation_->machines_[m].process;
    const auto wanted = last != nullptr && last->self ? std::optional(last->self->worker)
                                                      : std::optional<WorkerId>();
    simulation_->StartProcess(m, wanted,
                              std::chrono::milliseconds(simulation_->random_.NextBelow(300)));
  }
}

// Before anything was noted the next one would begin the job anew.
bool Simulation::CoordinatorDeaths::MayDieAlone() const {
  return !down_ && !simulation_->result_ && !journal_.empty() && TellsOfAll();
}

bool Simulation::CoordinatorDeaths::TellsOfAll() const {
  return !last_commit_ || journal_.back().state.next_round > *last_commit_;
}

void Simulation::CoordinatorDeaths::DieWithin(JobFiles::File file, Duration length) {
  torn_ = Torn{file, length};
}

void Simulation::CoordinatorDeaths::DieAndFlip(JobFiles::File file, Duration length) {
  if (!MayDieAlone()) return;
  flip_ = file;
  DieAlone(length);
}

void Simulation::CoordinatorDeaths::DieAlone(Duration length) {
  if (!down_ && !simulation_->result_ && !Reattaches(simulation_->start_)) return EndJob(length);
  if (!MayDieAlone()) return;
  down_ = true;
  dies_after_.reset();
  simulation_->ForgetCoordinator();
  if (simulation_->hooks.on_crashed) simulation_->hooks.on_crashed();
  next_ = simulation_->now() + length;
  for (const std::unique_ptr<Process>& process : simulation_->processes_) {
    if (process->dead || process->closed) continue;
    process->LoseCoordinator(process->LoseConnection(simulation_->random_.NextBelow(2) == 0));
  }
  simulation_->queue_.After(length, [this] { TakeOver(); });
}

// The coordinator that carries out its last action is replaced behind it.
void Simulation::CoordinatorDeaths::HandOver() {
  LOCKSTEP_CHECK(!down_ && !journal_.empty() && TellsOfAll(),
                 "a coordinator hands over what nobody can go on with");
  simulation_->queue_.After(Duration{}, [this] { DieAlone(Duration{}); });
}

void Simulation::CoordinatorDeaths::TakeOver() {
  next_.reset();
  taking_over_ = true;
  down_ = false;
  last_commit_.reset();
  std::optional<coordinator::JobState> checkpoint;
  if (simulation_->disk_) checkpoint = simulation_->disk_->state;
  if (!simulation_->files_) {
    return simulation_->StartNextCoordinator(journal_, std::move(checkpoint));
  }
  JobFiles::Read read = ReadFiles(/*reattach=*/true);
  simulation_->StartNextCoordinator(read.journal, std::move(read.checkpoint));
}

namespace {

// The last entries, as many as are kept in memory.
std::string LastOf(const std::vector<coordinator::JournalEntry>& entries, std::size_t count) {
  std::string words;
  for (std::size_t i = entries.size() - std::min(count, entries.size()); i < entries.size(); ++i) {
    words += InWords(entries[i]) + "\n";
  }
  return words;
}

// But for what a resume counts anew.
std::string WordsOf(const std::optional<coordinator::JobState>& checkpoint) {
  if (!checkpoint) return "none";
  coordinator::JobState state = *checkpoint;
  state.totals.samples_dropped = state.totals.samples_requeued = 0;
  return InWords(state);
}

}  // namespace

JobFiles::Read Simulation::CoordinatorDeaths::ReadFiles(bool reattach) {
  JobFiles& files = *simulation_->files_;
  const Term term = simulation_->start_.term.Next();
  const bool flipped = flip_ && files.Flip(*flip_);
  JobFiles::Read read = files.Start(term, reattach);
  if (flipped) {
    if (GoesOnWith(read)) return read;
    files.Restore();
    read = files.Start(term, reattach);
  }
  flip_.reset();
  LOCKSTEP_CHECK(read.error.empty() && read.warning.empty(), "the files are refused: {}{}",
                 read.error, read.warning);
  LOCKSTEP_CHECK(LastOf(read.journal, journal_.size()) == LastOf(journal_, journal_.size()),
                 "the journal on disk has\n{}and not\n{}", LastOf(read.journal, journal_.size()),
                 LastOf(journal_, journal_.size()));
  std::optional<coordinator::JobState> saved;
  if (simulation_->disk_) saved = simulation_->disk_->state;
  LOCKSTEP_CHECK(WordsOf(read.checkpoint) == WordsOf(saved),
                 "the checkpoint on disk is\n{}\nand not\n{}", WordsOf(read.checkpoint),
                 WordsOf(saved));
  return read;
}

// Either it says what is wrong, or it has read the same as without the change. A last line of the
// journal may be missing: it looks as if its writer had been killed within it.
bool Simulation::CoordinatorDeaths::GoesOnWith(const JobFiles::Read& read) {
  const JobFiles::File file = *flip_;
  const std::string name = simulation_->files_->NameOf(file);
  if (!read.error.empty()) {
    LOCKSTEP_CHECK(read.error.find(name) != std::string::npos, "a change of {} is refused with: {}",
                   name, read.error);
    Sometimes<"files: a changed file is refused">();
    return false;
  }
  if (!read.warning.empty()) {
    LOCKSTEP_CHECK(file == JobFiles::File::kCheckpoint && !read.checkpoint, "{} changed, and: {}",
                   name, read.warning);
    Sometimes<"files: the job goes on without a changed checkpoint">();
    return false;  // it is needed again later
  }
  const std::size_t count = journal_.size();
  if (LastOf(read.journal, count) == LastOf(journal_, count)) {
    LOCKSTEP_CHECK(file != JobFiles::File::kJournal || journal_.empty() ||
                       InWords(read.journal.back()) == InWords(journal_.back()),
                   "the journal changed, and nobody noticed");
    Sometimes<"files: a change makes no difference">();
    return false;
  }
  LOCKSTEP_CHECK(file == JobFiles::File::kJournal,
                 "after a change of {} the journal is another one", name);
  if (count == 1 && read.journal.empty()) return false;  // it would begin anew
  if (!read.journal.empty() && read.journal.back().held() == journal_.back().held()) {
    // There were two lines of that commit: the last one told of a decision or a request, too.
    Sometimes<"files: of a commit an earlier line is left">();
    return false;
  }
  // Entries that it had taken the place of hold again: of another attempt, or of later rounds.
  const RoundId next = journal_.back().state.next_round;
  const auto older = [next](std::vector<coordinator::JournalEntry> entries) {
    std::erase_if(entries, [next](const auto& entry) { return entry.state.next_round >= next; });
    return entries;
  };
  const auto before = older({journal_.begin(), journal_.end() - 1});
  LOCKSTEP_CHECK(LastOf(older(read.journal), before.size()) == LastOf(before, before.size()),
                 "after a change of journal the journal is another one");
  Sometimes<"files: a changed last line is taken for a torn one">();
  flip_.reset();
  journal_ = read.journal;
  if (std::ssize(journal_) > kKept) journal_.erase(journal_.begin(), journal_.end() - kKept);
  journal_cut_ = true;
  return true;
}

}  // namespace lockstep::simulate
