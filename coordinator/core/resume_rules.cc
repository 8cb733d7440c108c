#include "coordinator/core/resume_rules.h"

#include <fmt/format.h>

#include <array>
#include <cstdlib>
#include <string_view>

#include "base/check.h"
#include "base/compatibility.h"
#include "base/ini.h"
#include "base/job_options.h"

namespace lockstep::coordinator {
namespace {

enum class Rule : std::uint8_t {
  kSame,        // as it was
  kSynthetic,   // as it was, where the data are made out of it
  kEpochStart,  // another one only between two epochs
  kZeroOrNot,   // another one, but not from or to 0: it decides which tensors there are
  kLasting,     // another one, but for what base/compatibility.h keeps
};

struct Bound {
  std::string_view key;
  Rule rule;
  std::string_view why;
};

constexpr std::string_view kTensors =
    "the checkpoint's tensors are those of the model it was made with";
constexpr std::string_view kState =
    "the checkpoint has the state of the optimizer it was made with";
constexpr std::string_view kData = "the epoch is one over the data it was begun with";
constexpr std::string_view kOrder =
    "in mid-epoch samples would count twice or never, since the order of samples follows from it";

constexpr std::array<Bound, 14> kBound = {{
    {"job.seed", Rule::kEpochStart, kOrder},
    {"model.name", Rule::kSame, kTensors},
    {"model.widths", Rule::kSame, kTensors},
    {"model.normalization", Rule::kSame, kTensors},
    {"data.format", Rule::kSame, kData},
    {"data.synthetic_train", Rule::kSynthetic, kData},
    {"data.synthetic_test", Rule::kSynthetic, kData},
    {"data.synthetic_features", Rule::kSynthetic, kData},
    {"data.synthetic_classes", Rule::kSynthetic, kData},
    {"optimizer.name", Rule::kSame, kState},
    {"optimizer.momentum", Rule::kZeroOrNot, kState},
    {"local.momentum", Rule::kZeroOrNot, kState},
    {"policy.name", Rule::kLasting, ""},
    {"exchange.compression", Rule::kLasting, ""},
}};

bool IsZero(const std::string& value) { return std::strtod(value.c_str(), nullptr) == 0; }

bool MayChange(const Bound& bound, const JobState& state, const std::string& before,
               const std::string& now) {
  const bool local = PolicySection{.name = state.settings.at("policy.name")}.local();
  const SamplerState& sampler = state.sampler;
  const bool epoch_start =
      sampler.uncounted == std::vector<SampleRange>{{0, sampler.epoch_samples}};
  const bool synthetic = state.settings.at("data.format") == "synthetic";
  switch (bound.rule) {
    case Rule::kSame:
      return false;
    case Rule::kSynthetic:
      return !synthetic;
    case Rule::kEpochStart:
      return epoch_start && !synthetic;
    case Rule::kZeroOrNot:
      if (bound.key.starts_with("local.") != local) return true;
      if (const std::string& name = state.settings.at("optimizer.name");
          !local && (name == "adamw" || name == "custom")) {
        return true;  // has no use for it
      }
      return IsZero(before) == IsZero(now);
    case Rule::kLasting:
      return WhyKept(bound.key, before, now).empty();
  }
  return false;
}

}  // namespace

std::map<std::string, std::string> SettingsToRemember(const JobConfig& config) {
  const auto lines = ScanIni(ToIni(config), "the configuration");
  LOCKSTEP_CHECK(lines.ok(), "{}", lines.error().message);
  std::map<std::string, std::string> all;
  for (const IniLine& line : *lines) {
    if (!line.key.empty()) all[line.section + "." + line.key] = line.value;
  }
  std::map<std::string, std::string> settings;
  for (const Bound& bound : kBound) {
    const std::string key(bound.key);
    LOCKSTEP_CHECK(all.contains(key), "there is no option {}", key);
    settings[key] = all[key];
  }
  return settings;
}

Status CheckResume(const JobState& state, const JobConfig& config) {
  const auto now = SettingsToRemember(config);
  std::map<std::string, std::string> then = state.settings;
  then.emplace("exchange.compression", "none");  // checkpoints of before there was one
  for (const Bound& bound : kBound) {
    const std::string key(bound.key);
    if (then.contains(key)) continue;
    return Error{ErrorCode::kInvalid,
                 fmt::format("--resume: the checkpoint does not say what {} was", key)};
  }
  for (const Bound& bound : kBound) {
    const std::string key(bound.key);
    const std::string& before = then.at(key);
    const std::string& value = now.at(key);
    if (before == value || MayChange(bound, state, before, value)) continue;
    const bool made_of_seed =
        bound.rule == Rule::kEpochStart && state.settings.at("data.format") == "synthetic";
    std::string_view why = made_of_seed ? "the synthetic data are made out of it" : bound.why;
    if (bound.rule == Rule::kLasting) why = WhyKept(key, before, value);
    return Error{ErrorCode::kInvalid,
                 fmt::format("--resume: {} = {}, but the checkpoint was made with {}: {}", key,
                             value, before, why)};
  }
  if (!config.data.digest.empty() && config.data.digest != state.dataset_digest) {
    return Error{
        ErrorCode::kInvalid,
        fmt::format("--resume: data.digest = {}, but the checkpoint was made with the data "
                    "of digest {}",
                    config.data.digest, state.dataset_digest)};
  }
  return {};
}

bool IsAtEnd(const JobState& state, const JobSection& job) {
  const std::uint32_t epochs = job.epochs == 0 && job.rounds == 0 ? 1 : job.epochs;
  return (job.rounds > 0 && state.next_round.value >= job.rounds) ||
         (epochs > 0 && state.sampler.epoch.value >= epochs);
}

}  // namespace lockstep::coordinator
