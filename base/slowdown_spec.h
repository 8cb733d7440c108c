// What --slowdown, the HTTP interface and the SetSlowdown message ask for: "key=value,...", for
// experiments that need a straggler. base/slowdown.h says how long work takes under it;
// docs/reference/slowdowns.md describes the patterns for users.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "base/time.h"

namespace lockstep {

enum class SlowdownPattern : std::uint8_t {
  kConstant,    // always, by `factor`
  kSlowWorker,  // single units, drawn with `probability`, by a factor or a delay out of a range
  kDisrupted,   // one worker after the other, drawn out of `workers`, by `factor`
  kPowerLaw,    // every unit, by a factor out of a bounded Pareto distribution
  kPause,       // nothing moves for `spell`, every `every`
  kDelay,       // whole steps (a worker's units of a round), drawn with `probability`, by `times`
  kTrace,       // by recorded factors
};

struct TracePoint {
  Duration at;        // since the trace's begin
  double factor = 1;  // holds until the next point; below 1 counts as 1
  bool operator==(const TracePoint&) const = default;
};

struct SlowdownSpec {
  SlowdownPattern pattern = SlowdownPattern::kConstant;
  std::optional<WorkerId> worker;  // absent: every worker, each by its own draws
  Duration from{};                 // since the start of the job
  std::optional<Duration> length;  // key `for`; absent: for good
  std::uint64_t seed = 1;          // of all draws

  double factor = 1;               // how many times as long; of slow-worker: the least
  double factor_most = 1;          // slow-worker
  Duration delay{};                // slow-worker: on top of the factor; the least
  Duration delay_most{};           // slow-worker
  double probability = 0;          // key `p`: slow-worker of a unit, delay of a step
  Duration spell{};                // key `length`: disrupted, pause
  Duration gap{};                  // disrupted: between two spells
  std::uint32_t workers = 0;       // disrupted: 0: all of the job
  double alpha = 0;                // power-law: P(factor > x) falls as x^-alpha
  double most = 0;                 // key `max`: power-law, the largest factor
  Duration every{};                // pause
  double times = 0;                // delay: a delayed step takes 1 + times its length
  std::string file;                // trace: to be read by whoever parses (base/slowdown_trace.h)
  std::vector<TracePoint> points;  // trace: ascending
  bool loop = false;               // trace: the last point starts it over
  bool operator==(const SlowdownSpec&) const = default;
};

inline constexpr std::size_t kMaxTracePoints = 10'000;
inline constexpr std::size_t kMaxSlowdownSpecs = 64;          // that one worker is told
inline constexpr std::size_t kMaxSlowdownBytes = 256u << 10;  // of all their texts

// "worker=2,factor=4,from=10s,for=5s". Without `pattern` it is constant. Errors (kInvalid) are one
// line and name the key and what is known.
Result<SlowdownSpec> ParseSlowdownSpec(std::string_view text);

// Whether a spec may name one: not where somebody else than who runs the process says it.
enum class SlowdownFiles : std::uint8_t { kRefused, kTaken };

// One spec a line, at most kMaxSlowdownSpecs of them; blank lines are skipped.
Result<std::vector<SlowdownSpec>> ParseSlowdownLines(std::string_view text,
                                                     SlowdownFiles files = SlowdownFiles::kRefused);

// Canonical; ParseSlowdownSpec gives the same spec back. A trace that has been read is written out
// point by point.
std::string ToString(const SlowdownSpec& spec);

// Whether the spec may speak of this worker.
bool AppliesTo(const SlowdownSpec& spec, WorkerId worker);

// Whether it names only workers that a job of so many has. One that is drawn out of more than there
// are would be nobody for a part of the time.
bool IsWithin(const SlowdownSpec& spec, std::uint32_t workers);

// Whether the spec's window is over at that time of the job.
bool IsOver(const SlowdownSpec& spec, Duration since_start);

}  // namespace lockstep
