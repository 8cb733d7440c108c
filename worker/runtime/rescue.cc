#include "worker/runtime/rescue.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <future>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <sstream>
#include <string_view>
#include <thread>
#include <tuple>
#include <utility>

#include "base/check.h"
#include "base/digest.h"
#include "base/log.h"
#include "base/options.h"
#include "worker/runtime/open_file.h"

namespace lockstep::worker {
namespace {

namespace fs = std::filesystem;

constexpr const char* kFile = "rescue.safetensors";
constexpr const char* kPartial = "rescue.safetensors.partial";
constexpr const char* kShards = "rescue-shards-";  // and the version
constexpr std::size_t kShardsHeader = 4096;        // a header's size is a multiple of that
constexpr std::size_t kMostShards = 64u << 10;     // bytes that name those that a file has
constexpr const char* kLock = "rescue.lock";
constexpr const char* kGone = "coordinator.gone";
constexpr const char* kSummary = "summary.json";
constexpr std::size_t kMostSummary = 4096;  // bytes; its status comes first
constexpr const char* kFormat = "lockstep-rescue";
constexpr std::uint64_t kChunk = 4u << 20;                // bytes
constexpr std::size_t kMostHeader = 64u << 10;            // bytes of one that was written here
constexpr std::size_t kFirstLine = 4096;                  // bytes of the journal's first line
constexpr std::size_t kMostJournal = 64u << 20;           // bytes; its writer keeps it far below
constexpr std::size_t kChecksumLength = 32;               // of a line of the journal, in hex
constexpr Duration kPatience = std::chrono::minutes(10);  // with a worker that writes

Error Failed(const fs::path& path, const char* doing) {
  return {ErrorCode::kIo, fmt::format("{}: {}: {}", path.string(), doing, std::strerror(errno))};
}

std::string ReadUpTo(const fs::path& path, std::size_t most) {
  const OpenFile file(path, O_RDONLY | O_NONBLOCK | O_NOFOLLOW);
  std::string text(file.get() < 0 ? 0 : most, '\0');
  std::size_t size = 0;
  while (size < text.size()) {
    const ssize_t got = ::read(file.get(), text.data() + size, text.size() - size);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    size += static_cast<std::size_t>(got);
  }
  text.resize(size);
  return text;
}

// The value of a key in a line that this program has written; empty: it is not there.
std::string_view TextIn(std::string_view json, std::string_view key) {
  const std::string begins = fmt::format("\"{}\":\"", key);
  const std::size_t at = json.find(begins);
  if (at == json.npos) return {};
  const std::string_view rest = json.substr(at + begins.size());
  return rest.substr(0, rest.find('"'));
}

template <class Number>
std::optional<Number> NumberIn(std::string_view json, std::string_view key) {
  const std::string_view text = TextIn(json, key);
  Number number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

// As above, of a number that is no text.
template <class Number>
std::optional<Number> PlainNumberIn(std::string_view json, std::string_view key) {
  const std::string begins = fmt::format("\"{}\":", key);
  const std::size_t at = json.find(begins);
  if (at == std::string_view::npos) return std::nullopt;
  const std::string_view text = json.substr(at + begins.size());
  Number number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end == text.data() + text.size()) return std::nullopt;
  return number;
}

struct Saved {
  HeldParameters held;
  std::string digest;
  std::string worker;
};

// Of this job, and as long as it has to be: nullopt, where it is not.
std::optional<Saved> ReadSaved(const fs::path& path, const std::string& run_id) {
  const std::string text = ReadUpTo(path, kMostHeader);
  std::uint64_t length = 0;
  if (text.size() <= sizeof length) return std::nullopt;
  std::memcpy(&length, text.data(), sizeof length);
  if (length > text.size() - sizeof length) return std::nullopt;
  const std::string_view json(text.data() + sizeof length, length);
  const auto term = NumberIn<std::uint32_t>(json, "term");
  const auto next = NumberIn<std::uint64_t>(json, "next_round");
  if (TextIn(json, "run_id") != run_id || !term || !next) return std::nullopt;
  Saved saved{{Term(*term), RoundId(*next), std::nullopt},
              std::string(TextIn(json, "digest")),
              std::string(TextIn(json, "worker"))};
  if (const auto attempt = NumberIn<std::uint32_t>(json, "attempt")) {
    saved.held.attempt = Attempt(*attempt);
  }
  return saved;
}

bool IsNewer(const HeldParameters& a, const HeldParameters& b) {
  const auto order = [](const HeldParameters& held) {
    return std::tuple(held.term, held.next, held.attempt);
  };
  return order(a) > order(b);
}

// With shards it is as long for each worker.
std::string HeaderOf(const RescueState& state, const Digest128& digest) {
  std::string json =
      fmt::format(R"({{"__metadata__":{{"format":"{}","run_id":"{}","term":"{}","next_round":"{}",)"
                  R"("attempt":"{}","worker":"{}","digest":"{}"}})",
                  kFormat, state.run_id, state.held.term, state.held.next,
                  state.held.attempt ? fmt::format("{}", *state.held.attempt) : std::string(),
                  state.worker, ToString(digest));
  const std::uint64_t bytes = state.parameters * sizeof(float);
  for (std::size_t t = 0; t < state.tensors.size(); ++t) {
    const std::string prefix =
        t == 0 ? std::string() : fmt::format("optimizer.{}.", state.state_names[t - 1]);
    json += fmt::format(R"(,"{}parameters":{{"dtype":"F32","shape":[{}],"data_offsets":[{},{}]}})",
                        prefix, state.parameters, t * bytes, (t + 1) * bytes);
  }
  json += '}';
  const std::size_t unit = state.shards.empty() ? 8 : kShardsHeader;
  json.resize((json.size() + unit - 1) / unit * unit, ' ');
  const std::uint64_t length = json.size();
  std::string header(sizeof length, '\0');
  std::memcpy(header.data(), &length, sizeof length);
  return header + json;
}

// All values in the order of the file, a chunk at a time with its offset, until `take` fails; with
// shards those of this worker's.
Status ForEachChunk(const RescueState& state, auto&& take) {
  const std::uint64_t bytes = state.parameters * sizeof(float);
  std::vector<FloatRange> ranges = {{0, state.parameters}};
  if (!state.shards.empty()) ranges.clear();
  for (const RescueShard& shard : state.shards) {
    ranges.insert(ranges.end(), shard.ranges.begin(), shard.ranges.end());
  }
  std::vector<std::byte> chunk(std::min(kChunk, bytes));
  for (std::size_t t = 0; t < state.tensors.size(); ++t) {
    const auto* const tensor = reinterpret_cast<const std::byte*>(state.tensors[t]);
    for (const FloatRange& range : ranges) {
      const std::uint64_t end = range.end() * sizeof(float);
      for (std::uint64_t at = range.first * sizeof(float); at < end; at += chunk.size()) {
        const std::span part(chunk.data(), std::min<std::uint64_t>(chunk.size(), end - at));
        if (t > 0 && state.state_on_host) {
          std::memcpy(part.data(), tensor + at, part.size());
        } else {
          state.memory->ToHost(part.data(), tensor + at, part.size());
        }
        if (Status taken = take(t * bytes + at, part); !taken) return taken;
      }
    }
  }
  return {};
}

Digest128 DigestOfAll(const RescueState& state) {
  DigestStream digest;
  const Status all = ForEachChunk(state, [&](std::uint64_t, std::span<const std::byte> part) {
    digest.Update(part);
    return Status();
  });
  LOCKSTEP_CHECK(all.ok(), "a digest fails: {}", all.error().message);
  return digest.Digest();
}

Status WriteAt(const OpenFile& file, const fs::path& path, std::uint64_t offset,
               std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t wrote =
        ::pwrite(file.get(), bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0) return Failed(path, "cannot be written");
    offset += static_cast<std::uint64_t>(wrote);
    bytes = bytes.subspan(static_cast<std::size_t>(wrote));
  }
  return {};
}

// Where the file system cannot reserve, a full disk shows at the write.
Status Reserve(const RescueState& state, const OpenFile& file, const fs::path& path) {
  const std::uint64_t total =
      HeaderOf(state, {}).size() + state.tensors.size() * state.parameters * sizeof(float);
  if (::fallocate(file.get(), 0, 0, static_cast<off_t>(total)) != 0 && errno != EOPNOTSUPP &&
      errno != ENOSYS) {
    return Failed(path, "cannot be written");
  }
  return {};
}

// It is as long with any digest, and comes last: a file without it is none.
Status WriteHeader(const RescueState& state, const Digest128& digest, const OpenFile& file,
                   const fs::path& path) {
  const std::string header = HeaderOf(state, digest);
  if (Status wrote = WriteAt(file, path, 0, std::as_bytes(std::span(header))); !wrote) return wrote;
  if (::fsync(file.get()) != 0) return Failed(path, "cannot be brought to the disk");
  return {};
}

Status WritePartial(const RescueState& state, const fs::path& path) {
  const OpenFile file(path, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW);
  if (file.get() < 0) return Failed(path, "cannot be created");
  if (Status reserved = Reserve(state, file, path); !reserved) return reserved;
  const std::uint64_t data = HeaderOf(state, {}).size();
  DigestStream digest;
  const Status written =
      ForEachChunk(state, [&](std::uint64_t at, std::span<const std::byte> part) {
        digest.Update(part);
        return WriteAt(file, path, data + at, part);
      });
  if (!written) return written;
  return WriteHeader(state, digest.Digest(), file, path);
}

// The complete file gets its name; with an error it is gone.
Status Publish(Status written, const fs::path& partial, const fs::path& folder) {
  if (written.ok() && ::rename(partial.c_str(), (folder / kFile).c_str()) != 0) {
    written = Failed(partial, "cannot be renamed");
  }
  if (!written) {
    ::unlink(partial.c_str());
    return written;
  }
  const OpenFile directory(folder, O_RDONLY | O_DIRECTORY);
  // Some network file systems cannot sync a folder.
  if (directory.get() < 0 || (::fsync(directory.get()) != 0 && errno != EINVAL)) {
    return Failed(folder, "cannot be brought to the disk");
  }
  return {};
}

Status Write(const RescueState& state, const fs::path& folder) {
  const fs::path partial = folder / kPartial;
  return Publish(WritePartial(state, partial), partial, folder);
}

// --- shards: a partial file, and a list of those that are in it

std::set<std::uint32_t> ReadShards(const fs::path& list, const RescueState& state) {
  std::istringstream in(ReadUpTo(list, kMostShards));
  std::string run_id;
  std::set<std::uint32_t> shards;
  in >> run_id;
  if (run_id != state.run_id) return {};
  for (std::uint32_t shard = 0; in >> shard;) {
    if (shard < state.shards_in_all) shards.insert(shard);
  }
  return shards;
}

Status WriteShards(const fs::path& list, const RescueState& state,
                   const std::set<std::uint32_t>& shards) {
  const OpenFile file(list, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW);
  if (file.get() < 0) return Failed(list, "cannot be created");
  std::string text = state.run_id;
  for (const std::uint32_t shard : shards) text += fmt::format(" {}", shard);
  text += '\n';
  if (Status wrote = WriteAt(file, list, 0, std::as_bytes(std::span(text))); !wrote) return wrote;
  if (::fsync(file.get()) != 0) return Failed(list, "cannot be brought to the disk");
  return {};
}

Result<Digest128> DigestOfFile(const RescueState& state, const OpenFile& file,
                               const fs::path& path) {
  std::vector<std::byte> chunk(kChunk);
  DigestStream digest;
  std::uint64_t at = HeaderOf(state, {}).size();
  std::uint64_t left = state.tensors.size() * state.parameters * sizeof(float);
  while (left > 0) {
    const ssize_t got = ::pread(file.get(), chunk.data(), std::min<std::uint64_t>(kChunk, left),
                                static_cast<off_t>(at));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return Failed(path, "cannot be read");
    if (got == 0) {
      return Error{ErrorCode::kIo, fmt::format("{}: it was cut off", path.string())};
    }
    digest.Update(std::span(chunk.data(), static_cast<std::size_t>(got)));
    at += static_cast<std::uint64_t>(got);
    left -= static_cast<std::uint64_t>(got);
  }
  return digest.Digest();
}

// Adds this worker's shards. With the last one the file is complete but for its name.
Status AddShards(const RescueState& state, const fs::path& partial, const fs::path& list,
                 std::set<std::uint32_t>* shards) {
  // Of a list whose file is gone nothing is there.
  std::error_code ignored;
  if (!fs::exists(partial, ignored)) shards->clear();
  const OpenFile file(partial, O_RDWR | O_CREAT | O_NOFOLLOW);
  if (file.get() < 0) return Failed(partial, "cannot be created");
  if (Status reserved = Reserve(state, file, partial); !reserved) return reserved;
  const std::uint64_t data = HeaderOf(state, {}).size();
  const Status written =
      ForEachChunk(state, [&](std::uint64_t at, std::span<const std::byte> part) {
        return WriteAt(file, partial, data + at, part);
      });
  if (!written) return written;
  for (const RescueShard& shard : state.shards) shards->insert(shard.shard);
  if (shards->size() < state.shards_in_all) {
    if (::fsync(file.get()) != 0) return Failed(partial, "cannot be brought to the disk");
    return WriteShards(list, state, *shards);
  }
  const Result<Digest128> digest = DigestOfFile(state, file, partial);
  return digest.ok() ? WriteHeader(state, *digest, file, partial) : Status(digest.error());
}

Result<std::string> SaveShards(const RescueState& state, const fs::path& folder) {
  const std::string version =
      fmt::format("{}-{}-{}", state.held.term, state.held.next,
                  state.held.attempt ? fmt::format("{}", *state.held.attempt) : "none");
  const fs::path partial = folder / fmt::format("{}{}.partial", kShards, version);
  const fs::path list = folder / fmt::format("{}{}.list", kShards, version);
  std::set<std::uint32_t> shards = ReadShards(list, state);
  Status added = AddShards(state, partial, list, &shards);
  if (added.ok() && shards.size() < state.shards_in_all) {
    return fmt::format("{} of {} shards of the state before round {} are in {} so far",
                       shards.size(), state.shards_in_all, state.held.next, partial.string());
  }
  // What others have added is of no use without the rest.
  ::unlink(list.c_str());
  if (Status whole = Publish(std::move(added), partial, folder); !whole) return whole.error();
  return fmt::format("the parameters before round {} are saved in {}, by this worker",
                     state.held.next, (folder / kFile).string());
}

// False: another worker has it for longer than this one waits. A lock has no time-out, so a thread
// waits for it that may outlast the wait.
bool LockWithin(const std::shared_ptr<OpenFile>& file, Duration limit) {
  if (::flock(file->get(), LOCK_EX | LOCK_NB) == 0) return true;
  std::promise<bool> locked;
  std::future<bool> outcome = locked.get_future();
  std::thread([file, locked = std::move(locked)]() mutable {
    locked.set_value(::flock(file->get(), LOCK_EX) == 0);
  }).detach();
  return outcome.wait_for(limit) == std::future_status::ready && outcome.get();
}

// Any directory may have that path on another host.
Status CheckFolder(const RescueState& state, const fs::path& folder) {
  struct stat found {};
  if (::stat(folder.c_str(), &found) != 0) {
    return Error{ErrorCode::kNotFound,
                 fmt::format("this worker does not reach the run directory {}: {}", folder.string(),
                             std::strerror(errno))};
  }
  const std::string journal = ReadUpTo(folder / "journal", kFirstLine);
  const std::string first = journal.substr(0, journal.find('\n'));
  if (state.run_id.empty() || TextIn(first, "run_id") != state.run_id) {
    return Error{ErrorCode::kNotFound,
                 fmt::format("{} on this worker's host is not the run directory of this job",
                             folder.string())};
  }
  return {};
}

// Without its checksum; empty: there is none, or it is damaged. What was cut off is no line.
std::string_view LastLineOf(std::string_view journal) {
  const std::size_t end = journal.rfind('\n');
  if (end == std::string_view::npos || end == 0) return {};
  const std::size_t before = journal.rfind('\n', end - 1);
  if (before == std::string_view::npos) return {};
  const std::string_view line = journal.substr(before + 1, end - before - 1);
  if (line.size() <= kChecksumLength) return {};
  const std::string_view json = line.substr(kChecksumLength + 1);
  DigestStream digest;
  digest.Update(std::as_bytes(std::span(json)));
  return ToString(digest.Digest()) == line.substr(0, kChecksumLength) ? json : std::string_view();
}

}  // namespace

std::optional<HeldParameters> DecidedInJournal(const std::string& run_dir,
                                               const std::string& run_id) {
  const fs::path path = fs::path(run_dir) / "journal";
  std::error_code ignored;
  const std::uintmax_t size = fs::file_size(path, ignored);
  if (run_dir.empty() || ignored || size > kMostJournal) return std::nullopt;
  const std::string text = ReadUpTo(path, size);
  const std::string_view journal(text);
  if (run_id.empty() || TextIn(journal.substr(0, journal.find('\n')), "run_id") != run_id) {
    return std::nullopt;
  }
  // In a text of the line the quotes of these keys would be escaped.
  const std::string_view line = LastLineOf(journal);
  if (line.find("\"decided\":true") == std::string_view::npos) return std::nullopt;
  const auto term = PlainNumberIn<std::uint32_t>(line, "term");
  const auto next = PlainNumberIn<std::uint64_t>(line, "next_round");
  const auto attempt = PlainNumberIn<std::uint32_t>(line, "attempt");
  if (!term || !next || !attempt) return std::nullopt;
  return HeldParameters{Term(*term), RoundId(*next), Attempt(*attempt)};
}

bool NobodyComes(const std::string& run_dir) {
  std::error_code ignored;
  return !run_dir.empty() && fs::exists(fs::path(run_dir) / kGone, ignored);
}

bool IsRunDirectoryOf(const std::string& run_dir, const std::string& run_id) {
  if (run_dir.empty() || run_id.empty()) return false;
  const std::string journal = ReadUpTo(fs::path(run_dir) / "journal", kFirstLine);
  return TextIn(std::string_view(journal).substr(0, journal.find('\n')), "run_id") == run_id;
}

JobEnd EndOfJob(const std::string& run_dir, const std::string& run_id) {
  if (!IsRunDirectoryOf(run_dir, run_id)) return JobEnd::kUnknown;
  const std::string summary = ReadUpTo(fs::path(run_dir) / kSummary, kMostSummary);
  if (summary.empty()) return JobEnd::kUnknown;
  return summary.find("\"status\": \"completed\"") != std::string::npos ? JobEnd::kCompleted
                                                                        : JobEnd::kEnded;
}

Result<std::string> SaveRescue(const RescueState& state) {
  LOCKSTEP_CHECK(!state.tensors.empty() && state.tensors.size() == state.state_names.size() + 1,
                 "{} tensors with {} names of state", state.tensors.size(),
                 state.state_names.size());
  const fs::path folder = state.run_dir;
  if (Status right = CheckFolder(state, folder); !right) return right.error();
  const auto lock = std::make_shared<OpenFile>(folder / kLock, O_RDWR | O_CREAT | O_NOFOLLOW);
  if (lock->get() < 0) return Failed(folder / kLock, "cannot be opened");
  if (!LockWithin(lock, kPatience)) {
    return Error{ErrorCode::kTimeout,
                 fmt::format("{}: another worker has been writing for {}",
                             (folder / kFile).string(), FormatDurationSeconds(Seconds(kPatience)))};
  }
  const fs::path path = folder / kFile;
  const auto saved = ReadSaved(path, state.run_id);
  if (saved && !IsNewer(state.held, saved->held)) {
    if (saved->held == state.held && state.shards.empty() &&
        saved->digest != ToString(DigestOfAll(state))) {
      spdlog::warn(
          "the parameters of this worker before round {} are not those that worker {} has saved "
          "in {}: one of the two is damaged",
          state.held.next, saved->worker, path.string());
    }
    return fmt::format("the parameters before round {} are saved in {}, by worker {}",
                       saved->held.next, path.string(), saved->worker);
  }
  if (!state.shards.empty()) return SaveShards(state, folder);
  if (Status written = Write(state, folder); !written) return written.error();
  return fmt::format("the parameters before round {} are saved in {}, by this worker",
                     state.held.next, path.string());
}

}  // namespace lockstep::worker
