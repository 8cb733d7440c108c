#include "coordinator/journal/rescue.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <optional>
#include <span>
#include <system_error>
#include <utility>
#include <vector>

#include "coordinator/checkpoint/checkpoint_reader.h"
#include "coordinator/checkpoint/checkpoint_store.h"
#include "coordinator/checkpoint/safetensors.h"
#include "coordinator/journal/journal.h"
#include "coordinator/record/whole_file.h"

namespace lockstep::coordinator {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kChunk = 1u << 20;

Error Wrong(std::string why) { return {ErrorCode::kInvalid, std::move(why)}; }

struct Header {
  std::string run_id;
  HeldParameters held;
  std::string worker;
  Digest128 digest;
};

template <class Number>
std::optional<Number> NumberOf(const std::string& text) {
  Number number = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, number);
  if (text.empty() || error != std::errc() || rest != end) return std::nullopt;
  return number;
}

Result<Header> HeaderOf(const Metadata& metadata) {
  const auto text = [&](const char* key) {
    const auto found = metadata.find(key);
    return found == metadata.end() ? std::string() : found->second;
  };
  if (text("format") != "lockstep-rescue") return Wrong("it is no rescue file");
  const auto term = NumberOf<std::uint32_t>(text("term"));
  const auto next = NumberOf<std::uint64_t>(text("next_round"));
  const auto attempt = NumberOf<std::uint32_t>(text("attempt"));
  const auto digest = DigestFromString(text("digest"));
  if (!term || !next || !digest || (!attempt && !text("attempt").empty())) {
    return Wrong("its header is damaged");
  }
  Header header{
      text("run_id"), {Term(*term), RoundId(*next), std::nullopt}, text("worker"), *digest};
  if (attempt) header.held.attempt = Attempt(*attempt);
  return header;
}

std::string InWords(const HeldParameters& held) {
  return fmt::format("term {}, round {}{}", held.term, held.next,
                     held.attempt ? fmt::format(", attempt {}", *held.attempt) : std::string());
}

Result<const JournalEntry*> EntryOf(const Header& header, const JournalFile::Contents& journal) {
  if (header.run_id != journal.run_id) return Wrong("it is another job's");
  if (journal.entries.empty()) return Wrong("the journal has no entries");
  const auto entry = std::ranges::find(journal.entries, header.held, &JournalEntry::held);
  if (entry == journal.entries.end()) {
    return Wrong(
        fmt::format("the journal does not tell of its parameters ({}), and its last entry "
                    "is another one ({})",
                    InWords(header.held), InWords(journal.entries.back().held())));
  }
  if (entry->state.next_round == RoundId(0)) return Wrong("no round is in it");
  return &*entry;
}

// Copies the values, read once, to a checkpoint that is not yet valid.
Status Copy(const fs::path& path, const Header& header, JobState flat, CheckpointStore& store) {
  // The file has each tensor of StateChunk as one.
  flat.tensors = TensorList();
  auto reader = CheckpointReader::Open(path, flat);
  if (!reader) return reader.error();
  DigestStream digest;
  while (reader->read() < reader->total()) {
    auto chunk = reader->Next(kChunk);
    if (!chunk) return chunk.error();
    const std::span values(reinterpret_cast<const float*>(chunk->bytes.data()),
                           chunk->bytes.size() / sizeof(float));
    if (!std::ranges::all_of(values, [](float value) { return std::isfinite(value); })) {
      return Wrong("it has values that are not finite");
    }
    digest.Update(chunk->bytes);
    store.Add(*chunk);
  }
  if (digest.Digest() != header.digest) {
    return Wrong(
        fmt::format("its values are not those that were written: they have the digest {}, "
                    "its header says {}",
                    ToString(digest.Digest()), ToString(header.digest)));
  }
  return {};
}

msg::Ready LayoutOf(const JobState& state) {
  msg::Ready layout;
  layout.parameter_count = state.parameter_count;
  layout.state_tensors = state.state_tensors;
  layout.tensors = state.tensors;
  layout.state_names = state.state_names;
  return layout;
}

Result<std::string> Adopt(RunDirectory& directory, const fs::path& path, std::uint32_t keep) {
  auto file = SafetensorsFile::Open(path.string());
  if (!file) return file.error();
  const auto header = HeaderOf(file->header().metadata);
  if (!header) return header.error();
  const auto journal = JournalFile::Read(directory.path());
  if (!journal) return journal.error();
  const auto entry = EntryOf(*header, *journal);
  if (!entry) return entry.error();
  CheckpointStore store(directory.checkpoints(), keep);
  const auto newest = store.Newest();
  // Where that one is damaged, this one may be the way out.
  if (newest && *newest && (*newest)->state.next_round >= (*entry)->state.next_round) {
    return Error{ErrorCode::kClosed,
                 fmt::format("{}: removed, for the checkpoint after round {} is as new",
                             path.string(), (*newest)->round)};
  }
  JobState state = (*entry)->state;
  state.digest = header->digest;
  const RoundId round(state.next_round.value - 1);
  store.Describe(LayoutOf(state));
  if (Status copied = Copy(path, *header, state, store); !copied) {
    store.Drop(round);
    return copied.error();
  }
  // A checkpoint must not know of rounds that have no records.
  const std::span entries(journal->entries.data(),
                          static_cast<std::size_t>(*entry - journal->entries.data()) + 1);
  if (Status complete = directory.Complete(entries); !complete) return complete.error();
  if (Status saved = store.Save(round, state)(); !saved) return saved.error();
  return fmt::format(
      "the parameters that worker {} has saved are the checkpoint after round {} now",
      header->worker, round);
}

// Shards that lack others (worker/runtime/rescue.h); the line is for people. While a worker adds
// some, nothing is touched: a list must not outlive its file.
std::string RemoveShards(const fs::path& folder) {
  const OwnedFd lock(::open((folder / "rescue.lock").c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW));
  if (lock.get() < 0 || ::flock(lock.get(), LOCK_EX | LOCK_NB) != 0) return {};
  std::error_code error;
  std::vector<fs::path> found;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    if (entry.path().filename().string().starts_with("rescue-shards-")) {
      found.push_back(entry.path());
    }
  }
  for (const fs::path& path : found) fs::remove(path, error);
  if (found.empty()) return {};
  return fmt::format(
      "{}: workers have saved shards of the optimizer's state there, and not all of them: they are "
      "removed, and the newest checkpoint counts",
      folder.string());
}

}  // namespace

Rescue AdoptRescue(RunDirectory& directory, std::uint32_t keep) {
  const fs::path path = directory.path() / kRescueFile;
  std::error_code error;
  const std::string shards = RemoveShards(directory.path());
  if (!fs::exists(path, error)) return {.used = false, .line = shards};
  const auto adopted = Adopt(directory, path, keep);
  if (!adopted && adopted.error().code == ErrorCode::kClosed) {
    fs::remove(path, error);
    return {true, adopted.error().message};
  }
  if (!adopted) {
    std::string why = adopted.error().message;
    // Errors of files begin with their names.
    if (!why.starts_with(path.string())) why = fmt::format("{}: {}", path.string(), why);
    return {false,
            fmt::format("{}; the parameters that workers have saved there are not used", why)};
  }
  fs::remove(path, error);
  return {true, *adopted};
}

}  // namespace lockstep::coordinator
