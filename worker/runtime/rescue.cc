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
#include <span>
#include <string_view>
#include <thread>
#include <tuple>
#include <utility>

#include "base/check.h"
#include "base/digest.h"
#include "base/log.h"
#include "base/options.h"

namespace lockstep::worker {
namespace {

namespace fs = std::filesystem;

constexpr const char* kFile = "rescue.safetensors";
constexpr const char* kPartial = "rescue.safetensors.partial";
constexpr const char* kLock = "rescue.lock";
constexpr const char* kGone = "coordinator.gone";
constexpr const char* kFormat = "lockstep-rescue";
constexpr std::uint64_t kChunk = 4u << 20;                // bytes
constexpr std::size_t kMostHeader = 64u << 10;            // bytes of one that was written here
constexpr std::size_t kFirstLine = 4096;                  // bytes of the journal that are looked at
constexpr Duration kPatience = std::chrono::minutes(10);  // with a worker that writes

class File {
 public:
  File(const fs::path& path, int flags) : fd_(::open(path.c_str(), flags | O_CLOEXEC, 0644)) {}
  ~File() {
    if (fd_ >= 0) ::close(fd_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

Error Failed(const fs::path& path, const char* doing) {
  return {ErrorCode::kIo, fmt::format("{}: {}: {}", path.string(), doing, std::strerror(errno))};
}

std::string ReadUpTo(const fs::path& path, std::size_t most) {
  const File file(path, O_RDONLY | O_NONBLOCK | O_NOFOLLOW);
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
  json.resize((json.size() + 7) / 8 * 8, ' ');
  const std::uint64_t length = json.size();
  std::string header(sizeof length, '\0');
  std::memcpy(header.data(), &length, sizeof length);
  return header + json;
}

// All values in the order of the file, a chunk at a time, until `take` fails.
Status ForEachChunk(const RescueState& state, auto&& take) {
  std::vector<std::byte> chunk(std::min(kChunk, state.parameters * sizeof(float)));
  for (const float* tensor : state.tensors) {
    const std::uint64_t bytes = state.parameters * sizeof(float);
    for (std::uint64_t at = 0; at < bytes; at += chunk.size()) {
      const std::span part(chunk.data(), std::min<std::uint64_t>(chunk.size(), bytes - at));
      const std::byte* from = reinterpret_cast<const std::byte*>(tensor) + at;
      state.memory->ToHost(part.data(), from, part.size());
      if (Status taken = take(part); !taken) return taken;
    }
  }
  return {};
}

Digest128 DigestOfAll(const RescueState& state) {
  DigestStream digest;
  const Status all = ForEachChunk(state, [&](std::span<const std::byte> part) {
    digest.Update(part);
    return Status();
  });
  LOCKSTEP_CHECK(all.ok(), "a digest fails: {}", all.error().message);
  return digest.Digest();
}

Status WriteAt(const File& file, const fs::path& path, std::uint64_t offset,
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

// The header is as long with any digest, and comes last: a file without it is none.
Status WritePartial(const RescueState& state, const fs::path& path) {
  const File file(path, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW);
  if (file.get() < 0) return Failed(path, "cannot be created");
  std::uint64_t at = HeaderOf(state, {}).size();
  const std::uint64_t total = at + state.tensors.size() * state.parameters * sizeof(float);
  // Where the file system cannot reserve, a full disk shows at the write.
  if (::fallocate(file.get(), 0, 0, static_cast<off_t>(total)) != 0 && errno != EOPNOTSUPP &&
      errno != ENOSYS) {
    return Failed(path, "cannot be written");
  }
  DigestStream digest;
  const Status written = ForEachChunk(state, [&](std::span<const std::byte> part) {
    digest.Update(part);
    const Status wrote = WriteAt(file, path, at, part);
    at += part.size();
    return wrote;
  });
  if (!written) return written;
  const std::string header = HeaderOf(state, digest.Digest());
  if (Status wrote = WriteAt(file, path, 0, std::as_bytes(std::span(header))); !wrote) return wrote;
  if (::fsync(file.get()) != 0) return Failed(path, "cannot be brought to the disk");
  return {};
}

Status Write(const RescueState& state, const fs::path& folder) {
  const fs::path partial = folder / kPartial;
  Status written = WritePartial(state, partial);
  if (written.ok() && ::rename(partial.c_str(), (folder / kFile).c_str()) != 0) {
    written = Failed(partial, "cannot be renamed");
  }
  if (!written) {
    ::unlink(partial.c_str());
    return written;
  }
  const File directory(folder, O_RDONLY | O_DIRECTORY);
  // Some network file systems cannot sync a folder.
  if (directory.get() < 0 || (::fsync(directory.get()) != 0 && errno != EINVAL)) {
    return Failed(folder, "cannot be brought to the disk");
  }
  return {};
}

// False: another worker has it for longer than this one waits. A lock has no time-out, so a thread
// waits for it that may outlast the wait.
bool LockWithin(const std::shared_ptr<File>& file, Duration limit) {
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

}  // namespace

bool NobodyComes(const std::string& run_dir) {
  std::error_code ignored;
  return !run_dir.empty() && fs::exists(fs::path(run_dir) / kGone, ignored);
}

Result<std::string> SaveRescue(const RescueState& state) {
  LOCKSTEP_CHECK(!state.tensors.empty() && state.tensors.size() == state.state_names.size() + 1,
                 "{} tensors with {} names of state", state.tensors.size(),
                 state.state_names.size());
  const fs::path folder = state.run_dir;
  if (Status right = CheckFolder(state, folder); !right) return right.error();
  const auto lock = std::make_shared<File>(folder / kLock, O_RDWR | O_CREAT | O_NOFOLLOW);
  if (lock->get() < 0) return Failed(folder / kLock, "cannot be opened");
  if (!LockWithin(lock, kPatience)) {
    return Error{ErrorCode::kTimeout,
                 fmt::format("{}: another worker has been writing for {}",
                             (folder / kFile).string(), FormatDurationSeconds(Seconds(kPatience)))};
  }
  const fs::path path = folder / kFile;
  const auto saved = ReadSaved(path, state.run_id);
  if (saved && !IsNewer(state.held, saved->held)) {
    if (saved->held == state.held && saved->digest != ToString(DigestOfAll(state))) {
      spdlog::warn(
          "the parameters of this worker before round {} are not those that worker {} has saved "
          "in {}: one of the two is damaged",
          state.held.next, saved->worker, path.string());
    }
    return fmt::format("the parameters before round {} are saved in {}, by worker {}",
                       saved->held.next, path.string(), saved->worker);
  }
  if (Status written = Write(state, folder); !written) return written.error();
  return fmt::format("the parameters before round {} are saved in {}, by this worker",
                     state.held.next, path.string());
}

}  // namespace lockstep::worker
