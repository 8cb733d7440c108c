// What each round must come to.
#include <algorithm>

#include "tests/property/worker/harness.h"

namespace lockstep::worker::sim {

World::World(WorldOptions o)
    : options(std::move(o)), layout(options.blocks, options.bucket_bytes) {}

void World::OnCommit(const Commit& commit) {
  commits_[{commit.round, commit.attempt}] = commit;
  oldest_ = std::max(oldest_, RoundId(commit.round.value < 12 ? 0 : commit.round.value - 12));
  std::erase_if(commits_, [&](const auto& c) { return c.first.first < oldest_; });
  std::erase_if(sealed_, [&](const auto& s) { return std::get<1>(s.first) < oldest_; });
  std::erase_if(truth_, [&](const auto& t) { return t.first < oldest_; });
}

void World::OnSealed(const MemberId& member, RoundId round, PartIndex part,
                     std::vector<float> gradient) {
  sealed_[{member, round, part}] = std::move(gradient);
}

std::optional<State> World::Compute(const Commit& commit) {
  State state;
  if (commit.round.value == 0) {
    state = InitialState(layout);
  } else {
    const auto before = truth_.find(RoundId(commit.round.value - 1));
    if (before == truth_.end()) return std::nullopt;
    state = before->second.state;
  }
  std::vector<float> sum(layout.sum_floats(), 0.0f);
  bool first = true;
  for (const CommittedPart& part : commit.parts) {
    const auto gradient = sealed_.find({part.member, commit.round, part.part});
    if (gradient == sealed_.end()) return std::nullopt;
    for (std::uint64_t i = 0; i < layout.parameter_count(); ++i) {
      const float term = part.weight * gradient->second[i];
      sum[i] = first ? term : sum[i] + term;
    }
    first = false;
  }
  float factor = 1.0f;
  std::vector<FloatRange> all;
  for (std::uint32_t b = 0; b < layout.bucket_count(); ++b) {
    AddNorms(layout, {b, layout.bucket(b)}, &sum);
    all.push_back(layout.bucket(b));
  }
  factor = ClipFactor(layout, sum, commit.scale, options.machine.clip);
  Update(sum, all, commit.scale, commit.learning_rate, factor, &state);
  return state;
}

std::string World::CheckApplied(RoundId round, Attempt attempt, const State& state) {
  auto known = truth_.find(round);
  if (known == truth_.end() || known->second.attempt < attempt) {
    const auto commit = commits_.find({round, attempt});
    if (commit == commits_.end() && round < oldest_) return "";  // too long ago to be known
    if (commit == commits_.end()) return "a round was applied that was not committed";
    auto computed = Compute(commit->second);
    if (!computed) return "";
    truth_[round] = {attempt, std::move(*computed)};
    known = truth_.find(round);
  }
  // An attempt that was replaced by another one, applied by somebody who is out.
  if (known->second.attempt != attempt) return "";
  ++applied;
  if (known->second.state == state) return "";
  for (std::uint64_t i = 0; i < layout.parameter_count(); ++i) {
    if (known->second.state.parameters[i] == state.parameters[i]) continue;
    return fmt::format("round {} attempt {}: parameter {} is {}, not {}", round, attempt, i,
                       state.parameters[i], known->second.state.parameters[i]);
  }
  return fmt::format("round {} attempt {}: the momentum differs", round, attempt);
}

std::string World::CheckLevel(RoundId next, const State& state) {
  const auto known = truth_.find(RoundId(next.value - 1));
  if (known == truth_.end()) return "";
  ++caught_up;
  return known->second.state == state ? "" : fmt::format("caught up to round {} wrongly", next);
}

}  // namespace lockstep::worker::sim
