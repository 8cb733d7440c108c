// What a checkpoint holds beside the tensors.
#include "coordinator/checkpoint/checkpoint_manifest.h"

#include <nlohmann/json.hpp>
#include <span>

#include "base/check.h"
#include "base/digest.h"
#include "tests/fuzz/target.h"

namespace lockstep::fuzz {

namespace {

// What is behind the checksum is to be read as well.
std::string WithChecksum(const std::string& text) {
  auto json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return text;
  json.erase("checksum");
  const std::string rest = json.dump();
  DigestStream digest;
  digest.Update(std::as_bytes(std::span(rest)));
  json["checksum"] = ToString(digest.Digest());
  return json.dump();
}

}  // namespace

bool Run(Bytes bytes) {
  (void)coordinator::JobStateFromJson(Text(bytes));
  const auto state = coordinator::JobStateFromJson(WithChecksum(std::string(Text(bytes))));
  if (!state) {
    LOCKSTEP_CHECK(OneLine(state.error().message), "{}", state.error().message);
    return false;
  }
  LOCKSTEP_CHECK(state->parameter_count > 0 && !state->sampler.uncounted.empty());
  const std::string text = coordinator::ToJson(*state);
  const auto back = coordinator::JobStateFromJson(text);
  LOCKSTEP_CHECK(back.ok(), "{}", back.ok() ? "" : back.error().message);
  LOCKSTEP_CHECK(coordinator::ToJson(*back) == text, "a state changes on the way");
  return true;
}

std::vector<std::string> Seeds() {
  coordinator::JobState state;
  state.next_round = RoundId(40);
  state.updates = 40;
  state.sampler.epoch = Epoch(2);
  state.sampler.epoch_samples = 700;
  state.sampler.uncounted = {{0, 10}, {64, 700}};
  state.totals.rounds = 40;
  state.totals.epochs = 2;
  state.totals.samples_counted = 1454;
  state.dataset_digest = "0123456789abcdef";
  state.test_samples = 100;
  state.parameter_count = 4096;
  state.state_tensors = 2;
  return {coordinator::ToJson(state)};
}

}  // namespace lockstep::fuzz
