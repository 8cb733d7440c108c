// What a checkpoint holds beside the tensors.
#include "coordinator/job_state.h"

#include "base/check.h"
#include "tests/fuzz/target.h"

namespace lockstep::fuzz {

bool Run(Bytes bytes) {
  const auto state = coordinator::JobStateFromJson(Text(bytes));
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
  state.totals.samples_counted = 2048;
  state.dataset_digest = "0123456789abcdef";
  state.test_samples = 100;
  state.parameter_count = 4096;
  state.state_tensors = 2;
  return {coordinator::ToJson(state)};
}

}  // namespace lockstep::fuzz
