// What --slowdown and the SetSlowdown message ask for: "key=value,...", for experiments that need a
// straggler. Pure; whoever computes asks FactorAt how much longer its work has to take.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/ids.h"
#include "base/result.h"
#include "base/time.h"

namespace lockstep {

struct SlowdownSpec {
  std::optional<WorkerId> worker;  // absent: every worker
  double factor = 1;               // work takes this many times as long
  Duration from{};                 // since the start of the job
  std::optional<Duration> length;  // absent: for good
  bool operator==(const SlowdownSpec&) const = default;
};

// "worker=2,factor=4,from=10s,for=5s"; `factor` is required; `pattern` is constant, which is what
// it is without one. Errors (kInvalid) name the key and what is known.
Result<SlowdownSpec> ParseSlowdownSpec(std::string_view text);

// Canonical; ParseSlowdownSpec gives the same spec back.
std::string ToString(const SlowdownSpec& spec);

// Whether the spec speaks of this worker.
bool AppliesTo(const SlowdownSpec& spec, WorkerId worker);

// How many times as long work takes `since_start` after the start of the job; 1: undisturbed.
double FactorAt(const SlowdownSpec& spec, Duration since_start);

}  // namespace lockstep
