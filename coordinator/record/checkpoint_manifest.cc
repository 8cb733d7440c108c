#include "coordinator/record/checkpoint_manifest.h"

#include <fmt/format.h>

#include <limits>
#include <nlohmann/json.hpp>
#include <span>

namespace lockstep::coordinator {
namespace {

using Json = nlohmann::json;

constexpr char kChecksum[] = "checksum";

// Of the object without its checksum, in the one form that dump() gives it.
std::string ChecksumOf(const Json& json) {
  // A worker names its tensors as it likes: what is not UTF-8 is replaced, as in the tensors' file.
  const std::string text = json.dump(-1, ' ', false, Json::error_handler_t::replace);
  DigestStream stream;
  stream.Update(std::as_bytes(std::span(text)));
  return ToString(stream.Digest());
}

// Reads members of an object; remembers the first thing that is wrong.
class Reader {
 public:
  explicit Reader(const Json& json) : json_(json) {}

  template <class T>
  void Count(const char* key, T* to) {
    const Json* value = Find(key);
    if (value == nullptr) return;
    if (!value->is_number_unsigned() ||
        value->get<std::uint64_t>() > std::numeric_limits<T>::max()) {
      return Fail(fmt::format("{} is {}, which is no count", key, value->dump()));
    }
    *to = value->get<T>();
  }
  void Text(const char* key, std::string* to) {
    const Json* value = Find(key);
    if (value == nullptr) return;
    if (!value->is_string()) return Fail(fmt::format("{} is no text", key));
    *to = value->get<std::string>();
  }
  // Null, after Fail, where there is none.
  const Json* List(const char* key) {
    const Json* value = Find(key);
    if (value == nullptr || value->is_array()) return value;
    Fail(fmt::format("{} is no list", key));
    return nullptr;
  }
  const Json* Object(const char* key) {
    const Json* value = Find(key);
    if (value == nullptr || value->is_object()) return value;
    Fail(fmt::format("{} is no object", key));
    return nullptr;
  }
  void Fail(std::string why) {
    if (wrong_.empty()) wrong_ = std::move(why);
  }
  const std::string& wrong() const { return wrong_; }

 private:
  const Json* Find(const char* key) {
    const auto found = json_.find(key);
    if (found != json_.end()) return &*found;
    Fail(fmt::format("{} is missing", key));
    return nullptr;
  }

  const Json& json_;
  std::string wrong_;
};

bool IsCounts(const Json& json) {
  if (!json.is_array()) return false;
  for (const Json& value : json) {
    if (!value.is_number_unsigned()) return false;
  }
  return true;
}

void ReadUncounted(Reader& reader, SamplerState* sampler) {
  const Json* list = reader.List("uncounted");
  if (list == nullptr) return;
  std::uint64_t at = 0;
  for (const Json& range : *list) {
    if (!IsCounts(range) || range.size() != 2) {
      return reader.Fail(fmt::format("uncounted has {}, which is no range", range.dump()));
    }
    const SampleRange read{range[0].get<std::uint64_t>(), range[1].get<std::uint64_t>()};
    if (read.from < at || read.from >= read.to || read.to > sampler->epoch_samples) {
      return reader.Fail(fmt::format("[{}, {}) is no range of an epoch of {} samples in order",
                                     read.from, read.to, sampler->epoch_samples));
    }
    at = read.to;
    sampler->uncounted.push_back(read);
  }
}

void ReadTensors(Reader& reader, JobState* state) {
  const Json* tensors = reader.List("tensors");
  const Json* names = reader.List("state_names");
  const Json* settings = reader.Object("settings");
  if (tensors == nullptr || names == nullptr || settings == nullptr) return;
  for (const Json& tensor : *tensors) {
    if (!tensor.is_object() || !tensor.contains("name") || !tensor["name"].is_string() ||
        !tensor.contains("shape") || !IsCounts(tensor["shape"])) {
      return reader.Fail("tensors has one without a name and a shape");
    }
    state->tensors.push_back(
        {tensor["name"].get<std::string>(), tensor["shape"].get<std::vector<std::uint64_t>>()});
  }
  for (const Json& name : *names) {
    if (!name.is_string()) return reader.Fail("state_names has one that is no text");
    state->state_names.push_back(name.get<std::string>());
  }
  for (const auto& [key, value] : settings->items()) {
    if (!value.is_string()) return reader.Fail(fmt::format("settings: {} is no text", key));
    state->settings[key] = value.get<std::string>();
  }
}

// What must hold whatever the job was.
std::string Contradiction(const JobState& state) {
  const SamplerState& sampler = state.sampler;
  if (state.next_round.value == 0) return "next_round is 0: there is no checkpoint before round 0";
  if (state.parameter_count == 0) return "parameter_count is 0";
  if (sampler.uncounted.empty()) return "nothing is left of its epoch";
  if (state.updates != state.next_round.value || state.totals.rounds != state.next_round.value) {
    return fmt::format("{} updates and {} rounds before round {}", state.updates,
                       state.totals.rounds, state.next_round);
  }
  if (state.totals.epochs != sampler.epoch.value) {
    return fmt::format("{} finished epochs before epoch {}", state.totals.epochs, sampler.epoch);
  }
  std::uint64_t left = 0;
  for (const SampleRange& range : sampler.uncounted) left += range.size();
  if (state.totals.samples_counted !=
      sampler.epoch.value * sampler.epoch_samples + sampler.epoch_samples - left) {
    return fmt::format("{} samples were counted, which epoch {} with {} of {} samples left denies",
                       state.totals.samples_counted, sampler.epoch, left, sampler.epoch_samples);
  }
  return {};
}

}  // namespace

std::string InWords(const std::vector<std::uint64_t>& shape) {
  std::vector<std::string> extents;
  for (const std::uint64_t extent : shape) extents.push_back(std::to_string(extent));
  return InWords(extents);
}

std::string InWords(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return "[" + text + "]";
}

std::string ToJson(const JobState& state) {
  Json uncounted = Json::array();
  for (const SampleRange& range : state.sampler.uncounted) {
    uncounted.push_back({range.from, range.to});
  }
  Json tensors = Json::array();
  for (const TensorInfo& tensor : state.tensors) {
    tensors.push_back({{"name", tensor.name}, {"shape", tensor.shape}});
  }
  Json json = {
      {"next_round", state.next_round.value},
      {"updates", state.updates},
      {"epoch", state.sampler.epoch.value},
      {"epoch_samples", state.sampler.epoch_samples},
      {"uncounted", std::move(uncounted)},
      {"rounds", state.totals.rounds},
      {"epochs", state.totals.epochs},
      {"samples_counted", state.totals.samples_counted},
      {"samples_dropped", state.totals.samples_dropped},
      {"samples_requeued", state.totals.samples_requeued},
      {"samples_moved", state.totals.samples_moved},
      {"dataset_digest", state.dataset_digest},
      {"test_samples", state.test_samples},
      {"parameter_count", state.parameter_count},
      {"state_tensors", state.state_tensors},
      {"tensors", std::move(tensors)},
      {"state_names", state.state_names},
      {"settings", Json::object()},
      {"digest", ToString(state.digest)},
  };
  for (const auto& [key, value] : state.settings) json["settings"][key] = value;
  json[kChecksum] = ChecksumOf(json);
  return json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

Result<JobState> JobStateFromJson(std::string_view text) {
  const auto invalid = [](const std::string& why) {
    return Error{ErrorCode::kInvalid, "the checkpoint's job state: " + why};
  };
  Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return invalid("it is no JSON object, or is cut off");
  JobState state;
  Reader reader(json);
  reader.Count("next_round", &state.next_round.value);
  reader.Count("updates", &state.updates);
  reader.Count("epoch", &state.sampler.epoch.value);
  reader.Count("epoch_samples", &state.sampler.epoch_samples);
  ReadUncounted(reader, &state.sampler);
  reader.Count("rounds", &state.totals.rounds);
  reader.Count("epochs", &state.totals.epochs);
  reader.Count("samples_counted", &state.totals.samples_counted);
  reader.Count("samples_dropped", &state.totals.samples_dropped);
  reader.Count("samples_requeued", &state.totals.samples_requeued);
  reader.Count("samples_moved", &state.totals.samples_moved);
  reader.Text("dataset_digest", &state.dataset_digest);
  reader.Count("test_samples", &state.test_samples);
  reader.Count("parameter_count", &state.parameter_count);
  reader.Count("state_tensors", &state.state_tensors);
  if (!reader.wrong().empty()) return invalid(reader.wrong());
  if (!json.contains(kChecksum)) {
    return invalid("it has no checksum: an earlier version wrote it, or it was changed");
  }
  ReadTensors(reader, &state);
  std::string digest;
  std::string checksum;
  reader.Text("digest", &digest);
  reader.Text(kChecksum, &checksum);
  if (!reader.wrong().empty()) return invalid(reader.wrong());
  json.erase(kChecksum);
  if (checksum != ChecksumOf(json)) {
    return invalid("its checksum does not fit: it was changed or damaged");
  }
  const auto read = DigestFromString(digest);
  if (!read) return invalid("digest is none");
  state.digest = *read;
  if (const std::string wrong = Contradiction(state); !wrong.empty()) return invalid(wrong);
  return state;
}

}  // namespace lockstep::coordinator
