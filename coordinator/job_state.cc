#include "coordinator/job_state.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "coordinator/json_numbers.h"

namespace lockstep::coordinator {

using Json = nlohmann::json;

std::string ToJson(const JobState& state) {
  Json uncounted = Json::array();
  for (const SampleRange& range : state.sampler.uncounted) {
    uncounted.push_back({range.from, range.to});
  }
  const Json json = {
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
  };
  return json.dump(1) + "\n";
}

Result<JobState> JobStateFromJson(std::string_view text) {
  const auto invalid = [](const std::string& why) {
    return Error{ErrorCode::kInvalid, "the checkpoint's job state: " + why};
  };
  JobState state;
  try {
    const Json json = Json::parse(text);
    const auto read = [&json](const char* key, auto* count) {
      *count = CountFrom<std::remove_reference_t<decltype(*count)>>(json.at(key), key);
    };
    read("next_round", &state.next_round.value);
    read("updates", &state.updates);
    read("epoch", &state.sampler.epoch.value);
    read("epoch_samples", &state.sampler.epoch_samples);
    for (const Json& range : json.at("uncounted")) {
      state.sampler.uncounted.push_back({CountFrom<std::uint64_t>(range.at(0), "uncounted"),
                                         CountFrom<std::uint64_t>(range.at(1), "uncounted")});
    }
    read("rounds", &state.totals.rounds);
    read("epochs", &state.totals.epochs);
    read("samples_counted", &state.totals.samples_counted);
    read("samples_dropped", &state.totals.samples_dropped);
    read("samples_requeued", &state.totals.samples_requeued);
    read("samples_moved", &state.totals.samples_moved);
    json.at("dataset_digest").get_to(state.dataset_digest);
    read("test_samples", &state.test_samples);
    read("parameter_count", &state.parameter_count);
    read("state_tensors", &state.state_tensors);
  } catch (const Json::exception& e) {
    return invalid(e.what());
  } catch (const JsonRangeError& e) {
    return invalid(e.what());
  }
  std::uint64_t at = 0;
  for (const SampleRange& range : state.sampler.uncounted) {
    if (range.from < at || range.from >= range.to || range.to > state.sampler.epoch_samples) {
      return invalid(fmt::format("[{}, {}) is no range of an epoch of {} samples in order",
                                 range.from, range.to, state.sampler.epoch_samples));
    }
    at = range.to;
  }
  if (state.sampler.uncounted.empty() || state.parameter_count == 0) {
    return invalid("nothing is left of its epoch, or it has no parameters");
  }
  return state;
}

}  // namespace lockstep::coordinator
