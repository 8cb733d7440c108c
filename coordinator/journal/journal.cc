#include "coordinator/journal/journal.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <sstream>
#include <utility>

#include "base/digest.h"
#include "base/job_options.h"
#include "base/regular_file.h"
#include "coordinator/checkpoint/checkpoint_manifest.h"
#include "coordinator/record/json_numbers.h"
#include "coordinator/record/line_writer.h"
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

// As ranges, [[0, 4], [6, 7]]: nearly always it is one.
void WriteMembers(const std::vector<WorkerId>& members, LineWriter& out) {
  std::vector<SampleRange> ranges;
  for (const WorkerId member : members) {
    if (ranges.empty() || ranges.back().to != member.value) {
      ranges.push_back({member.value, member.value});
    }
    ranges.back().to = member.value + 1;
  }
  out.Ranges(ranges);
}

std::vector<WorkerId> MembersFrom(const Json& ranges) {
  std::vector<WorkerId> members;
  if (!ranges.is_array()) throw JsonRangeError("members is no list");
  std::uint32_t next = 0;
  for (const Json& range : ranges) {
    if (!range.is_array() || range.size() != 2) throw JsonRangeError("members has no range");
    const auto from = CountFrom<std::uint32_t>(range[0], "members");
    const auto to = CountFrom<std::uint32_t>(range[1], "members");
    if (from < next || to <= from || to > kMaxWorkers) {
      throw JsonRangeError(fmt::format("members has the range {} to {}", from, to));
    }
    for (next = from; next < to; ++next) members.push_back(WorkerId(next));
  }
  return members;
}

Json AuditJson(const JournalEntry& entry) {
  Json audit = {
      {"units", entry.audit.units}, {"differed", entry.audit.differed}, {"wrong", Json::array()}};
  for (const WorkerId worker : entry.audit.wrong) audit["wrong"].push_back(worker.value);
  audit["devices"] = entry.wrong_devices;
  return audit;
}

void ReadAudit(const Json& json, JournalEntry* entry) {
  const auto list = [&](const char* key) -> const Json& {
    const Json& found = Member(json, key);
    if (!found.is_array() || found.size() > kMaxWorkers) {
      throw JsonRangeError(fmt::format("{} is no list of workers", key));
    }
    return found;
  };
  entry->audit.units = CountFrom<std::uint64_t>(Member(json, "units"), "units");
  entry->audit.differed = CountFrom<std::uint64_t>(Member(json, "differed"), "differed");
  for (const Json& worker : list("wrong")) {
    entry->audit.wrong.push_back(WorkerId(CountFrom<std::uint32_t>(worker, "wrong")));
  }
  for (const Json& device : list("devices")) {
    const auto is_text = [](const Json& part) { return part.is_string(); };
    if (!device.is_array() || device.size() != 3 || !std::ranges::all_of(device, is_text)) {
      throw JsonRangeError("devices has what is none");
    }
    entry->wrong_devices.insert(
        {device[0].get<std::string>(), device[1].get<std::string>(), device[2].get<std::string>()});
  }
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
    if (entry.attempt && entry.state.next_round == RoundId(0)) {
      return Wrong("it is of a commit before round 0");
    }
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
    if (const auto members = json.find("members"); members != json.end()) {
      entry.members = MembersFrom(*members);
    }
    if (const auto decided = json.find("decided"); decided != json.end()) {
      if (!decided->is_boolean()) return Wrong("decided is neither true nor false");
      entry.decided = decided->get<bool>();
    }
    if (const auto audit = json.find("audit"); audit != json.end()) ReadAudit(*audit, &entry);
  } catch (const JsonRangeError& error) {
    return Wrong(error.what());
  }
  return entry;
}

// Another attempt at a round takes the place of the one before, and so does the same with more to
// say. Where the job went on from an entry, those of later rounds are void; that entry stays, since
// a worker may not have heard of the new term yet.
template <class Entries>
void Add(JournalEntry entry, Entries* entries) {
  const auto is_void = [&entry](const JournalEntry& earlier) {
    if (earlier.state.next_round != entry.state.next_round) {
      return earlier.state.next_round > entry.state.next_round;
    }
    return entry.attempt || earlier.held() == entry.held();
  };
  while (!entries->empty() && is_void(entries->back())) entries->pop_back();
  entries->push_back(std::move(entry));
}

bool ChecksumFits(std::string_view line) {
  return line.size() > kChecksumLength && line[kChecksumLength] == ' ' &&
         ChecksumOf(line.substr(kChecksumLength + 1)) == line.substr(0, kChecksumLength);
}

}  // namespace

JournalReader::JournalReader(std::size_t most) : most_(most), lasting_(std::make_unique<Json>()) {}

JournalReader::~JournalReader() = default;

Status JournalReader::Take(std::string_view line) {
  if (!ChecksumFits(line)) return Wrong("its checksum does not fit: it was changed or damaged");
  const Json json = Json::parse(line.substr(kChecksumLength + 1), nullptr, false);
  if (!json.is_object()) return Wrong("it is no JSON object");
  if (!std::exchange(begun_, true)) {
    try {
      contents_.run_id = TextIn(json, "run_id");
      contents_.term = TermIn(json);
    } catch (const JsonRangeError& error) {
      return Wrong(error.what());
    }
    return {};
  }
  auto entry = EntryFrom(json, lasting_.get());
  if (!entry) return entry.error();
  Add(*std::move(entry), &contents_.entries);
  if (contents_.entries.size() > most_) contents_.entries.erase(contents_.entries.begin());
  return {};
}

Result<JournalFile::Contents> JournalFile::Parse(std::string_view text) {
  JournalReader reader(std::numeric_limits<std::size_t>::max());
  std::size_t number = 0;
  while (!text.empty()) {
    const std::size_t end = text.find('\n');
    if (end == std::string_view::npos) break;  // its writer was killed in its midst
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(end + 1);
    ++number;
    // A machine that stopped may have kept the length of a last line and not its bytes.
    if (text.empty() && number > 1 && !ChecksumFits(line)) break;
    if (Status taken = reader.Take(line); !taken) {
      return Wrong(fmt::format("line {}: {}", number, taken.error().message));
    }
  }
  if (number == 0) return Wrong("it has no first line");
  return reader.contents();
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
  LineWriter out;
  out.Raw("{\"term\":");
  out.Number(entry.term.value);
  out.Raw(",\"attempt\":");
  if (entry.attempt) {
    out.Number(entry.attempt->value);
  } else {
    out.Raw("null");
  }
  out.Raw(",\"state\":{\"uncounted\":");
  out.Ranges(entry.state.sampler.uncounted);
  for (const auto& [key, value] : ProgressNumbers(entry.state)) {
    out.Raw(",\"");
    out.Raw(key);
    out.Raw("\":");
    out.Number(value);
  }
  out.Raw("},\"policy\":");
  out.Text(entry.policy);
  out.Raw(",\"slowdowns\":");
  out.Text(entry.slowdowns);
  if (!entry.members.empty()) {
    out.Raw(",\"members\":");
    WriteMembers(entry.members, out);
  }
  if (entry.decided) out.Raw(",\"decided\":true");
  if (entry.audit.units > 0 || !entry.wrong_devices.empty()) {
    out.Raw(",\"audit\":");
    out.Raw(Dump(AuditJson(entry)));
  }
  if (lasting) {
    out.Raw(",\"job\":");
    out.Raw(Dump(LastingToJson(entry.state)));
  }
  out.Raw(",\"record\":");
  out.Raw(entry.record ? RoundLine(*entry.record) : "null");
  out.Raw("}");
  return WithChecksum(out.Take());
}

std::string JournalFile::Text() const {
  std::string text = first_line_;
  for (const JournalEntry& entry : kept_) text += LineOf(entry, &entry == &kept_.front());
  return text;
}

Status JournalFile::WriteAnew() {
  const std::string text = Text();
  if (Status written = WriteWholeFile(path_, text); !written) return written;
  file_ = OwnedFd(::open(path_.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC));
  if (file_.get() < 0) return IoError(path_, "cannot open");
  bytes_ = text.size();
  return {};
}

Status JournalFile::Append(const JournalEntry& entry) {
  if (!failed_) return failed_;
  const bool first = kept_.empty();
  Add(entry, &kept_);
  if (kept_.size() > kKept) kept_.pop_front();
  last_line_ = LineOf(entry, first);
  failed_ = bytes_ >= kMostBytes ? WriteAnew() : Write(last_line_);
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
