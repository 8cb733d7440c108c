#include "coordinator/checkpoint/checkpoint_manifest.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <span>

#include "coordinator/record/json_numbers.h"

namespace lockstep::coordinator {
namespace {

using Json = nlohmann::json;

constexpr char kChecksum[] = "checksum";

// The digest of the object without its checksum, in the one form that dump() gives it.
std::string ChecksumOf(const Json& json) {
  // A worker names its tensors as it likes: what is not UTF-8 is replaced, as in the tensors' file.
  const std::string text = json.dump(-1, ' ', false, Json::error_handler_t::replace);
  DigestStream stream;
  stream.Update(std::as_bytes(std::span(text)));
  return ToString(stream.Digest());
}

const Json& Member(const Json& json, const char* key) {
  const auto found = json.find(key);
  if (found == json.end()) throw JsonRangeError(fmt::format("{} is missing", key));
  return *found;
}

template <class T>
void ReadCount(const Json& json, const char* key, T* to) {
  *to = CountFrom<T>(Member(json, key), key);
}

std::string TextFrom(const Json& json, std::string_view what) {
  if (!json.is_string()) throw JsonRangeError(fmt::format("{} is not a string", what));
  return json.get<std::string>();
}

const Json& List(const Json& json, const char* key) {
  const Json& list = Member(json, key);
  if (!list.is_array()) throw JsonRangeError(fmt::format("{} is not a list", key));
  return list;
}

std::vector<SampleRange> UncountedFrom(const Json& json, std::uint64_t epoch_samples) {
  std::vector<SampleRange> uncounted;
  std::uint64_t at = 0;
  for (const Json& range : List(json, "uncounted")) {
    if (!range.is_array() || range.size() != 2) {
      throw JsonRangeError("uncounted has one that is no range");
    }
    const SampleRange read{CountFrom<std::uint64_t>(range[0], "a range's start"),
                           CountFrom<std::uint64_t>(range[1], "a range's end")};
    if (read.from < at || read.from >= read.to || read.to > epoch_samples) {
      throw JsonRangeError(fmt::format("[{}, {}) is no range of an epoch of {} samples in order",
                                       read.from, read.to, epoch_samples));
    }
    at = read.to;
    uncounted.push_back(read);
  }
  return uncounted;
}

std::vector<TensorInfo> TensorsFrom(const Json& json) {
  std::vector<TensorInfo> tensors;
  for (const Json& tensor : List(json, "tensors")) {
    if (!tensor.is_object()) throw JsonRangeError("tensors has one that is no object");
    TensorInfo& read = tensors.emplace_back();
    read.name = TextFrom(Member(tensor, "name"), "a tensor's name");
    for (const Json& extent : List(tensor, "shape")) {
      read.shape.push_back(CountFrom<std::uint64_t>(extent, "a tensor's extent"));
    }
  }
  return tensors;
}

// Without the digest and the checksum.
JobState StateFrom(const Json& json) {
  JobState state;
  ReadCount(json, "next_round", &state.next_round.value);
  ReadCount(json, "updates", &state.updates);
  ReadCount(json, "epoch", &state.sampler.epoch.value);
  ReadCount(json, "epoch_samples", &state.sampler.epoch_samples);
  state.sampler.uncounted = UncountedFrom(json, state.sampler.epoch_samples);
  ReadCount(json, "rounds", &state.totals.rounds);
  ReadCount(json, "epochs", &state.totals.epochs);
  ReadCount(json, "samples_counted", &state.totals.samples_counted);
  ReadCount(json, "samples_dropped", &state.totals.samples_dropped);
  ReadCount(json, "samples_requeued", &state.totals.samples_requeued);
  ReadCount(json, "samples_moved", &state.totals.samples_moved);
  state.dataset_digest = TextFrom(Member(json, "dataset_digest"), "dataset_digest");
  ReadCount(json, "test_samples", &state.test_samples);
  ReadCount(json, "parameter_count", &state.parameter_count);
  ReadCount(json, "state_tensors", &state.state_tensors);
  state.tensors = TensorsFrom(json);
  for (const Json& name : List(json, "state_names")) {
    state.state_names.push_back(TextFrom(name, "a name of state"));
  }
  const Json& settings = Member(json, "settings");
  if (!settings.is_object()) throw JsonRangeError("settings is no object");
  for (const auto& [key, value] : settings.items()) {
    state.settings[key] = TextFrom(value, "a setting");
  }
  return state;
}

// Checks what holds for every job.
std::string Contradiction(const JobState& state) {
  const SamplerState& sampler = state.sampler;
  if (state.parameter_count == 0) return "parameter_count is 0";
  if (sampler.uncounted.empty()) return "nothing is left of its epoch";
  if (state.updates != state.next_round.value || state.totals.rounds != state.next_round.value) {
    return fmt::format("{} updates and {} rounds before round {}", state.updates,
                       state.totals.rounds, state.next_round);
  }
  if (state.totals.epochs != sampler.epoch.value) {
    return fmt::format("{} finished epochs before epoch {}", state.totals.epochs, sampler.epoch);
  }
  // Skipped samples are among the dropped ones. At a job's end so are those that were left out
  // last, though the epoch still has them.
  const std::uint64_t settled = SettledSamples(sampler);
  const std::uint64_t counted = state.totals.samples_counted;
  if (counted > settled || settled - counted > state.totals.samples_dropped) {
    return fmt::format(
        "{} samples were counted and {} dropped, which contradicts epoch {} with {} of {} samples "
        "left",
        counted, state.totals.samples_dropped, sampler.epoch, SizeOf(sampler.uncounted),
        sampler.epoch_samples);
  }
  return {};
}

}  // namespace

std::array<std::pair<const char*, std::uint64_t>, 10> ProgressNumbers(const JobState& state) {
  return {{{"next_round", state.next_round.value},
           {"updates", state.updates},
           {"epoch", state.sampler.epoch.value},
           {"epoch_samples", state.sampler.epoch_samples},
           {"rounds", state.totals.rounds},
           {"epochs", state.totals.epochs},
           {"samples_counted", state.totals.samples_counted},
           {"samples_dropped", state.totals.samples_dropped},
           {"samples_requeued", state.totals.samples_requeued},
           {"samples_moved", state.totals.samples_moved}}};
}

nlohmann::json LastingToJson(const JobState& state) {
  Json tensors = Json::array();
  for (const TensorInfo& tensor : state.tensors) {
    tensors.push_back({{"name", tensor.name}, {"shape", tensor.shape}});
  }
  Json json = {
      {"dataset_digest", state.dataset_digest},
      {"test_samples", state.test_samples},
      {"parameter_count", state.parameter_count},
      {"state_tensors", state.state_tensors},
      {"tensors", std::move(tensors)},
      {"state_names", state.state_names},
      {"settings", Json::object()},
  };
  for (const auto& [key, value] : state.settings) json["settings"][key] = value;
  return json;
}

Result<JobState> JobStateFromParts(const nlohmann::json& lasting, const nlohmann::json& progress) {
  const auto invalid = [](const std::string& why) { return Error{ErrorCode::kInvalid, why}; };
  if (!lasting.is_object() || !progress.is_object()) return invalid("it is no JSON object");
  Json json = lasting;
  json.update(progress);
  JobState state;
  try {
    state = StateFrom(json);
  } catch (const JsonRangeError& error) {
    return invalid(error.what());
  }
  // A journal also has the state before round 0.
  if (const std::string wrong = Contradiction(state); !wrong.empty()) return invalid(wrong);
  return state;
}

std::string ToJson(const JobState& state) {
  Json json = LastingToJson(state);
  for (const auto& [key, value] : ProgressNumbers(state)) json[key] = value;
  Json& uncounted = json["uncounted"] = Json::array();
  for (const SampleRange& range : state.sampler.uncounted) {
    uncounted.push_back({range.from, range.to});
  }
  json["digest"] = ToString(state.digest);
  json[kChecksum] = ChecksumOf(json);
  return json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

Result<JobState> JobStateFromJson(std::string_view text) {
  const auto invalid = [](const std::string& why) {
    return Error{ErrorCode::kInvalid, "the checkpoint's job state: " + why};
  };
  Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return invalid("it is not a JSON object, or is cut off");
  if (!json.contains(kChecksum)) {
    return invalid("it has no checksum: an earlier version wrote it, or it was changed");
  }
  JobState state;
  try {
    state = StateFrom(json);
    const auto digest = DigestFromString(TextFrom(Member(json, "digest"), "digest"));
    if (!digest) return invalid("digest is not valid");
    state.digest = *digest;
    const std::string checksum = TextFrom(json[kChecksum], kChecksum);
    json.erase(kChecksum);
    if (checksum != ChecksumOf(json)) {
      return invalid("its checksum does not match: it was changed or damaged");
    }
  } catch (const JsonRangeError& error) {
    return invalid(error.what());
  }
  if (state.next_round == RoundId(0)) {
    return invalid("next_round is 0: there is no checkpoint before round 0");
  }
  if (const std::string wrong = Contradiction(state); !wrong.empty()) return invalid(wrong);
  return state;
}

}  // namespace lockstep::coordinator
