#include "tools/simulate/job_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>
#include <system_error>
#include <utility>

#include "base/check.h"
#include "coordinator/checkpoint/checkpoint_manifest.h"
#include "coordinator/record/write_json.h"
#include "coordinator/shell/read_for_resume.h"

namespace lockstep::simulate {
namespace {

namespace fs = std::filesystem;

constexpr const char* kRunId = "simulated";

fs::path MakeFolder(const fs::path& parent) {
  std::string pattern = (parent / "lockstep-simulate-XXXXXX").string();
  LOCKSTEP_CHECK(::mkdtemp(pattern.data()) != nullptr, "{}: {}", pattern, std::strerror(errno));
  return pattern;
}

void MustSucceed(const Status& status) {
  LOCKSTEP_CHECK(status.ok(), "{}", status.error().message);
}

std::string BytesOf(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream bytes;
  bytes << in.rdbuf();
  return bytes.str();
}

void Replace(const fs::path& path, const std::string& bytes) {
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  LOCKSTEP_CHECK(out.flush().good(), "{} cannot be written", path.string());
}

std::uint64_t LengthOf(const fs::path& path) {
  std::error_code none;
  const std::uintmax_t length = fs::file_size(path, none);
  return none ? 0 : length;
}

}  // namespace

JobFiles::JobFiles(const coordinator::StartParameters& start, const fs::path& parent,
                   std::uint64_t seed)
    : folder_(MakeFolder(parent)),
      job_(start.config.job),
      keep_(start.config.checkpoint.keep),
      random_(seed, 12) {
  auto directory = coordinator::RunDirectory::Open(folder_ / "run", /*resume=*/false);
  LOCKSTEP_CHECK(directory.ok(), "{}", directory.error().message);
  directory_ = *std::move(directory);
  checkpoints_ = std::make_unique<coordinator::CheckpointStore>(directory_->checkpoints(), keep_);
  auto journal =
      coordinator::JournalFile::Begin(directory_->path(), {kRunId, start.term, {}}, false);
  LOCKSTEP_CHECK(journal.ok(), "{}", journal.error().message);
  journal_ = *std::move(journal);
}

JobFiles::~JobFiles() {
  std::error_code ignored;
  fs::remove_all(folder_, ignored);
}

std::string JobFiles::NameOf(File file) const {
  switch (file) {
    case File::kJournal:
      return coordinator::JournalFile::kName;
    case File::kRecords:
      return "rounds.jsonl";
    case File::kCheckpoint:
      break;
  }
  return "checkpoints/round-";
}

// Of the newest checkpoint one of its two files.
fs::path JobFiles::PathOf(File file) const {
  const fs::path run = folder_ / "run";
  if (file != File::kCheckpoint) return run / NameOf(file);
  std::vector<fs::path> states;
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(run / "checkpoints", none)) {
    if (entry.path().extension() == ".json") states.push_back(entry.path());
  }
  return states.empty() ? fs::path() : *std::ranges::max_element(states);
}

// Every length is as likely, and that of the whole line more so.
JobFiles::Written JobFiles::Tear(File file, std::uint64_t before) {
  tear_.reset();
  const fs::path path = PathOf(file);
  const std::uint64_t after = LengthOf(path);
  if (after <= before) return Written::kWhole;  // it was written anew, which is atomic
  std::uint64_t kept = random_.NextBelow(after - before + 1);
  if (random_.NextBelow(4) == 0) kept = after - before - random_.NextBelow(2);
  fs::resize_file(path, before + kept);
  return kept == after - before ? Written::kTornAtItsEnd : Written::kTorn;
}

JobFiles::Written JobFiles::Note(const coordinator::JournalEntry& entry) {
  const std::uint64_t before = LengthOf(PathOf(File::kJournal));
  MustSucceed(journal_->Append(entry));
  return ToTear(File::kJournal) ? Tear(File::kJournal, before) : Written::kWhole;
}

JobFiles::Written JobFiles::Append(const coordinator::RoundRecord& record) {
  const std::uint64_t before = LengthOf(PathOf(File::kRecords));
  MustSucceed(directory_->AppendRound(coordinator::RoundLine(record)));
  return ToTear(File::kRecords) ? Tear(File::kRecords, before) : Written::kWhole;
}

void JobFiles::Append(const coordinator::EvaluationRecord& record) {
  MustSucceed(directory_->AppendEvaluation(coordinator::EvaluationLine(record)));
}

void JobFiles::CutTo(const coordinator::JobState& state) {
  auto kept = directory_->KeepOf(state);
  LOCKSTEP_CHECK(kept.ok(), "{}", kept.error().message);
  MustSucceed(directory_->CutBack(*kept));
}

void JobFiles::Add(const msg::Ready& agreed, const msg::StateChunk& piece) {
  if (!std::exchange(described_, true)) checkpoints_->Describe(agreed);
  checkpoints_->Add(piece);
}

void JobFiles::Save(RoundId round, const coordinator::JobState& state) {
  MustSucceed(directory_->Sync()());
  MustSucceed(checkpoints_->Save(round, state)());
}

void JobFiles::Drop(RoundId round) { checkpoints_->Drop(round); }

JobFiles::Read JobFiles::Start(Term term, bool reattach) {
  tear_.reset();
  described_ = false;
  journal_.reset();
  checkpoints_.reset();
  directory_.reset();
  Read read;
  auto directory = coordinator::RunDirectory::Open(folder_ / "run", /*resume=*/true);
  LOCKSTEP_CHECK(directory.ok(), "{}", directory.error().message);
  auto checkpoints =
      std::make_unique<coordinator::CheckpointStore>((*directory)->checkpoints(), keep_);
  auto resumed =
      coordinator::ReadForResume(**directory, *checkpoints, job_, reattach, /*followed=*/nullptr);
  if (!resumed) {
    read.error = resumed.error().message;
    return read;
  }
  read.warning = std::move(resumed->warning);
  if (resumed->checkpoint) read.checkpoint = std::move(resumed->checkpoint->state);
  read.journal = resumed->journal.entries;
  MustSucceed((*directory)->CutBack(resumed->records));
  resumed->journal.term = term;
  auto journal =
      coordinator::JournalFile::Begin((*directory)->path(), resumed->journal, /*sync=*/false);
  LOCKSTEP_CHECK(journal.ok(), "{}", journal.error().message);
  directory_ = *std::move(directory);
  checkpoints_ = std::move(checkpoints);
  journal_ = *std::move(journal);
  return read;
}

void JobFiles::TearNext(File file) { tear_ = file; }

bool JobFiles::Flip(File file) {
  fs::path path = PathOf(file);
  if (file == File::kCheckpoint && !path.empty() && random_.NextBelow(2) == 0) {
    path.replace_extension(".safetensors");
  }
  std::string bytes = path.empty() ? std::string() : BytesOf(path);
  if (bytes.empty()) return false;
  original_ = {path, bytes};
  const std::uint64_t bit = random_.NextBelow(bytes.size() * 8);
  bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ (1 << (bit % 8)));
  Replace(path, bytes);
  return true;
}

void JobFiles::Restore() {
  if (!original_) return;
  Replace(original_->path, original_->bytes);
  original_.reset();
}

std::string InWords(const coordinator::JobState& state) { return coordinator::ToJson(state); }

std::string InWords(const coordinator::JournalEntry& entry) {
  coordinator::JobState state = entry.state;
  state.digest = {};
  std::string members;
  for (const WorkerId member : entry.members) members += fmt::format(" {}", member);
  return fmt::format(
      "term {}, attempt {}, policy {}, slow-downs {}, members{}, decided {}, audits {} {} {}, {} "
      "wrong devices, state {}, record {}",
      entry.term, entry.attempt ? fmt::format("{}", *entry.attempt) : "none", entry.policy,
      entry.slowdowns, members, entry.decided, entry.audit.units, entry.audit.differed,
      entry.audit.wrong.size(), entry.wrong_devices.size(), coordinator::ToJson(state),
      entry.record ? coordinator::RoundLine(*entry.record) : "none");
}

}  // namespace lockstep::simulate
