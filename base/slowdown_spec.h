// The specs of --slowdown, the HTTP interface and the SetSlowdown message: "key=value,...", for
// experiments that need a straggler. base/slowdown.h computes the time of work under them;
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
  Duration at;        // since the trace's start
  double factor = 1;  // holds until the next point; below 1 counts as 1
  bool operator==(const TracePoint&) const = default;
};

struct SlowdownSpec {
  SlowdownPattern pattern = SlowdownPattern::kConstant;
  std::optional<WorkerId> worker;  // absent: every worker, each by its own draws
  Duration from{};                 // since the start of the job
  std::optional<Duration> length;  // key `for`; absent: for good
  std::uint64_t seed = 1;          // of all draws

  double factor = 1;               // how many times as long; slow-worker: the least
  double factor_most = 1;          // slow-worker
  Duration delay{};                // slow-worker: on top of the factor; the least
  Duration delay_most{};           // slow-worker
  double probability = 0;          // key `p`: slow-worker of a unit, delay of a step
  Duration spell{};                // key `length`: disrupted, pause
  Duration gap{};                  // disrupted: between two spells
  std::uint32_t workers = 0;       // disrupted; 0: all workers of the job
  double alpha = 0;                // power-law: P(factor > x) falls as x^-alpha
  double most = 0;                 // key `max`: power-law, the largest factor
  Duration every{};                // pause
  double times = 0;                // delay: a delayed step takes 1 + times its length
  std::string file;                // trace: the parser's caller reads it (base/slowdown_trace.h)
  std::vector<TracePoint> points;  // trace: ascending
  bool loop = false;               // trace: starts again after the last point
  bool operator==(const SlowdownSpec&) const = default;
};

inline constexpr std::size_t kMaxTracePoints = 10'000;
inline constexpr std::size_t kMaxSlowdownSpecs = 64;          // the most specs for one worker
inline constexpr std::size_t kMaxSlowdownBytes = 256u << 10;  // of all their texts

// "worker=2,factor=4,from=10s,for=5s". Without `pattern` it is constant. Errors are kInvalid with
// one line, and name the key and the known words.
Result<SlowdownSpec> ParseSlowdownSpec(std::string_view text);

// Whether a spec may name a file: not when it comes from somebody other than the person who runs
// the process.
enum class SlowdownFiles : std::uint8_t { kRefused, kTaken };

// Parses one spec a line, at most kMaxSlowdownSpecs of them; blank lines are skipped.
Result<std::vector<SlowdownSpec>> ParseSlowdownLines(std::string_view text,
                                                     SlowdownFiles files = SlowdownFiles::kRefused);

// The form is canonical; ParseSlowdownSpec gives the same spec back. A trace that has been read is
// written out point by point.
std::string ToString(const SlowdownSpec& spec);

// Whether the spec may apply to this worker.
bool AppliesTo(const SlowdownSpec& spec, WorkerId worker);

// Whether the spec names only workers of a job with so many. A disrupted worker that is drawn out
// of more than there are would not exist for a part of the time.
bool IsWithin(const SlowdownSpec& spec, std::uint32_t workers);

// Whether the spec's window is over at that time of the job.
bool IsOver(const SlowdownSpec& spec, Duration since_start);

}  // namespace lockstep
