#include "coordinator/journal/journal.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <sstream>
#include <utility>

#include "base/digest.h"
#include "base/regular_file.h"
#include "coordinator/checkpoint/checkpoint_manifest.h"
#include "coordinator/record/json_numbers.h"
#include "coordinator/record/write_json.h"

namespace lockstep::coordinator {
namespace {

using Json = nlohmann::json;

constexpr std::size_t kChecksumLength = 32;  // of Digest128 in hex

std::string ChecksumOf(std::string_view text) {
  DigestStream stream;
  stream.Update(std::as_bytes(std::span(text)));
  return ToString(stream.Digest());
}

std::string Dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string WithChecksum(std::string_view text) {
  return fmt::format("{} {}\n", ChecksumOf(text), text);
}

Error Wrong(std::string why) { return {ErrorCode::kInvalid, std::move(why)}; }

const Json& Member(const Json& json, const char* key) {
  const auto found = json.find(key);
  if (found == json.end()) throw JsonRangeError(fmt::format("{} is missing", key));
  return *found;
}

std::string TextIn(const Json& json, const char* key) {
  const Json& text = Member(json, key);
  if (!text.is_string()) throw JsonRangeError(fmt::format("{} is no text", key));
  return text.get<std::string>();
}

Term TermIn(const Json& json) {
  return Term(CountFrom<std::uint32_t>(Member(json, "term"), "term"));
}

// `lasting`: of the entries before it; taken over where this one brings its own.
Result<JournalEntry> EntryFrom(const Json& json, Json* lasting) {
  JournalEntry entry;
  try {
    entry.term = TermIn(json);
    const Json& attempt = Member(json, "attempt");
    if (!attempt.is_null()) entry.attempt = Attempt(CountFrom<std::uint32_t>(attempt, "attempt"));
    if (const auto own = json.find("job"); own != json.end()) *lasting = *own;
    auto state = JobStateFromParts(*lasting, Member(json, "state"));
    if (!state) return state.error();
    entry.state = *std::move(state);
    if (const Json& record = Member(json, "record"); !record.is_null()) {
      auto read = RoundFromLine(record.dump());
      if (!read) return read.error();
      if (read->round.Next() != entry.state.next_round) {
        return Wrong("its record is that of another round");
      }
      entry.record = std::make_shared<const RoundRecord>(*std::move(read));
    }
    entry.policy = TextIn(json, "policy");
    entry.slowdowns = TextIn(json, "slowdowns");
  } catch (const JsonRangeError& error) {
    return Wrong(error.what());
  }
  return entry;
}

// Another attempt at a round takes the place of the one before; where the job went on from an
// entry, those of later rounds are void.
void Add(JournalEntry entry, std::vector<JournalEntry>* entries) {
  const RoundId next = entry.state.next_round;
  const bool begins = !entry.attempt;
  while (!entries->empty() && (begins ? entries->back().state.next_round > next
                                      : entries->back().state.next_round >= next)) {
    entries->pop_back();
  }
  entries->push_back(std::move(entry));
}

}  // namespace

Result<JournalFile::Contents> JournalFile::Parse(std::string_view text) {
  Contents contents;
  Json lasting;
  std::size_t number = 0;
  while (!text.empty()) {
    const std::size_t end = text.find('\n');
    if (end == std::string_view::npos) break;  // its writer was killed in its midst
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(end + 1);
    ++number;
    const auto wrong = [&](std::string_view why) {
      return Wrong(fmt::format("line {}: {}", number, why));
    };
    if (line.size() <= kChecksumLength || line[kChecksumLength] != ' ' ||
        ChecksumOf(line.substr(kChecksumLength + 1)) != line.substr(0, kChecksumLength)) {
      // A machine that stopped may have kept the length of a last line and not its bytes.
      if (text.empty() && number > 1) break;
      return wrong("its checksum does not fit: it was changed or damaged");
    }
    const Json json = Json::parse(line.substr(kChecksumLength + 1), nullptr, false);
    if (!json.is_object()) return wrong("it is no JSON object");
    if (number == 1) {
      try {
        contents.run_id = TextIn(json, "run_id");
        contents.term = TermIn(json);
      } catch (const JsonRangeError& error) {
        return wrong(error.what());
      }
      continue;
    }
    auto entry = EntryFrom(json, &lasting);
    if (!entry) return wrong(entry.error().message);
    Add(*std::move(entry), &contents.entries);
  }
  if (number == 0) return Wrong("it has no first line");
  return contents;
}

Result<JournalFile::Contents> JournalFile::Read(const std::filesystem::path& folder) {
  const std::filesystem::path path = folder / kName;
  if (!std::filesystem::exists(path)) {
    return Error{ErrorCode::kNotFound, fmt::format("{}: there is none", path.string())};
  }
  auto in = OpenRegularFile(path.string());
  if (!in) return in.error();
  std::ostringstream text;
  text << in->rdbuf();
  auto contents = Parse(text.str());
  if (!contents) {
    return Wrong(fmt::format("{}: {}", path.string(), contents.error().message));
  }
  return contents;
}

Result<std::unique_ptr<JournalFile>> JournalFile::Begin(const std::filesystem::path& folder,
                                                        const Contents& contents, bool sync) {
  std::unique_ptr<JournalFile> journal(new JournalFile(
      folder / kName,
      WithChecksum(Dump({{"run_id", contents.run_id}, {"term", contents.term.value}})), sync));
  const std::size_t skipped = contents.entries.size() > kKept ? contents.entries.size() - kKept : 0;
  journal->kept_.assign(contents.entries.begin() + static_cast<std::ptrdiff_t>(skipped),
                        contents.entries.end());
  if (Status written = journal->WriteAnew(); !written) return written.error();
  return journal;
}

std::string JournalFile::LineOf(const JournalEntry& entry, bool lasting) const {
  Json json = {
      {"term", entry.term.value},
      {"attempt", entry.attempt ? Json(entry.attempt->value) : Json()},
      {"state", ProgressToJson(entry.state)},
      {"policy", entry.policy},
      {"slowdowns", entry.slowdowns},
  };
  if (lasting) json["job"] = LastingToJson(entry.state);
  // The record is text already, and by far the longest of it.
  std::string text = Dump(json);
  text.pop_back();
  text += fmt::format(R"(,"record":{}}})", entry.record ? RoundLine(*entry.record) : "null");
  return WithChecksum(text);
}

Status JournalFile::WriteAnew() {
  std::string text = first_line_;
  for (const JournalEntry& entry : kept_) text += LineOf(entry, &entry == &kept_.front());
  if (Status written = WriteWholeFile(path_, text); !written) return written;
  file_ = OwnedFd(::open(path_.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC));
  if (file_.get() < 0) return IoError(path_, "cannot open");
  bytes_ = text.size();
  return {};
}

Status JournalFile::Append(const JournalEntry& entry) {
  if (!failed_) return failed_;
  const bool first = kept_.empty();
  kept_.push_back(entry);
  if (kept_.size() > kKept) kept_.pop_front();
  failed_ = bytes_ >= kMostBytes ? WriteAnew() : Write(LineOf(entry, first));
  return failed_;
}

Status JournalFile::Write(std::string_view line) {
  for (std::string_view left = line; !left.empty();) {
    const ssize_t wrote = ::write(file_.get(), left.data(), left.size());
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0) return IoError(path_, "cannot write");
    left.remove_prefix(static_cast<std::size_t>(wrote));
  }
  bytes_ += line.size();
  if (sync_ && ::fdatasync(file_.get()) != 0)
    return IoError(path_, "cannot be brought to the disk");
  return {};
}

}  // namespace lockstep::coordinator
