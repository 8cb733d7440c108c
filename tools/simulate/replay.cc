#include "tools/simulate/replay.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <istream>
#include <limits>
#include <map>
#include <span>

#include "base/check.h"
#include "base/ini.h"
#include "base/job_options.h"
#include "base/regular_file.h"
#include "coordinator/record/write_json.h"
#include "coordinator/shell/policy_loader.h"
#include "policies/registry.h"
#include "tools/simulate/job.h"
#include "tools/simulate/simulation.h"

namespace lockstep::simulate {
namespace {

// A value, and how often it occurs.
using Weighted = std::pair<double, std::uint64_t>;

double MedianOf(std::vector<Weighted> values) {
  std::sort(values.begin(), values.end());
  std::uint64_t count = 0;
  for (const auto& [value, weight] : values) count += weight;
  std::uint64_t before = 0;
  for (const auto& [value, weight] : values) {
    before += weight;
    if (before > count / 2) return value;
  }
  return 0;
}

double MedianOf(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

struct WorkerRound {
  double first_start = 0;
  double last_end = 0;
  std::uint64_t units = 0;
};

// The cost of a run beside its units. The method is that of coordinator/job/members.cc, but uses
// all workers' rounds alike.
class RunCostFit {
 public:
  void AddRound(std::span<const coordinator::UnitRecord* const> entries) {
    double units = 0;
    double x_mean = 0;
    double y_mean = 0;
    for (const coordinator::UnitRecord* entry : entries) {
      units += static_cast<double>(entry->units);
      x_mean += X(*entry) * static_cast<double>(entry->units);
      y_mean += entry->end - entry->start;
    }
    x_mean /= units;
    y_mean /= units;
    if (y_mean <= 0) return;
    for (const coordinator::UnitRecord* entry : entries) {
      const double each = (entry->end - entry->start) / static_cast<double>(entry->units);
      const double x = X(*entry) - x_mean;
      const double xy = x * (each / y_mean - 1) * static_cast<double>(entry->units);
      xx_ += x * x * static_cast<double>(entry->units);
      xy_ += xy;
      mean_xy_ += x_mean * xy;
    }
  }

  // The cost in unit times; 0 where all runs have one length.
  double in_units() const {
    if (xx_ < kTellsNothing) return 0;
    return std::max(xy_, 0.0) / std::max(xx_ - mean_xy_, kLeastUnit * xx_);
  }

 private:
  static constexpr double kTellsNothing = 1e-3;
  static constexpr double kLeastUnit = 0.05;
  static double X(const coordinator::UnitRecord& entry) {
    return 1 / static_cast<double>(entry.run);
  }

  double xx_ = 0;
  double xy_ = 0;
  double mean_xy_ = 0;
};

using EntriesByWorker = std::map<WorkerId, std::vector<const coordinator::UnitRecord*>>;

EntriesByWorker ByWorker(const coordinator::RoundRecord& record) {
  EntriesByWorker entries;
  for (const auto& unit : record.units) entries[unit.worker].push_back(&unit);
  return entries;
}

Error Unplayable(std::string what) { return {ErrorCode::kInvalid, std::move(what)}; }

// A line may be well-formed and still describe no possible round.
Status CheckRound(const coordinator::RoundRecord& record) {
  if (!IsPrintable(record.policy)) return Unplayable("the policy's name is no text");
  if (record.commit < record.start) return Unplayable("the round ends before it starts");
  for (const coordinator::UnitRecord& unit : record.units) {
    if (unit.end < unit.start) {
      return Unplayable(fmt::format("a unit of worker {} ends before it starts", unit.worker));
    }
  }
  std::uint64_t samples = 0;
  for (const coordinator::ContributorRecord& contributor : record.contributors) {
    std::uint64_t in_ranges = 0;
    for (const SampleRange& range : contributor.ranges) in_ranges += range.size();
    if (in_ranges != contributor.samples) {
      return Unplayable(fmt::format("worker {} contributes {} samples, its ranges have {}",
                                    contributor.worker, contributor.samples, in_ranges));
    }
    samples += in_ranges;
  }
  if (samples != record.samples) {
    return Unplayable(
        fmt::format("the round has {} samples, its contributors {}", record.samples, samples));
  }
  return {};
}

Status CheckOrder(const coordinator::RoundRecord& before, const coordinator::RoundRecord& after) {
  if (after.round.value != before.round.value + 1) {
    return Unplayable(fmt::format("round {} follows round {}", after.round, before.round));
  }
  if (after.start < before.start) {
    return Unplayable(fmt::format("round {} starts before round {}", after.round, before.round));
  }
  return {};
}

std::uint32_t WorkersOf(const std::vector<coordinator::RoundRecord>& records) {
  std::uint32_t workers = 0;
  const auto see = [&workers](WorkerId worker) { workers = std::max(workers, worker.value + 1); };
  for (const auto& record : records) {
    for (const auto& unit : record.units) see(unit.worker);
    for (const WorkerId worker : record.excluded) see(worker);
  }
  return workers;
}

// Times count from `first`.
void AddRound(const coordinator::RoundRecord& record, double first, RunTimes* run) {
  const double start = record.start - first;
  const double length = record.commit - record.start;
  std::map<WorkerId, WorkerRound> rounds;
  for (const coordinator::UnitRecord& unit : record.units) {
    const double seconds =
        std::max(unit.end - unit.start, 0.0) / (1 + run->run_cost / static_cast<double>(unit.run));
    run->workers[unit.worker.value].unit.Add(start, seconds / static_cast<double>(unit.units),
                                             unit.units);
    run->ranges.Add(record.epoch, {.range = unit.range,
                                   .worker = unit.worker,
                                   .units = unit.units,
                                   .seconds = seconds,
                                   .start = unit.start - first,
                                   .round_seconds = length});
    WorkerRound& round = rounds[unit.worker];
    if (round.units == 0 || unit.start < round.first_start) round.first_start = unit.start;
    round.units += unit.units;
    round.last_end = std::max(round.last_end, unit.end);
  }
  double units = 0;
  for (const auto& [worker, round] : rounds) {
    WorkerTimes& times = run->workers[worker.value];
    times.begin.Add(start, std::max(round.first_start - record.start, 0.0));
    const auto delivered = record.delivered.find(worker);
    if (delivered != record.delivered.end()) {
      times.delivery.Add(round.last_end - first, std::max(delivered->second - round.last_end, 0.0));
    }
    units += static_cast<double>(round.units);
  }
  // A worker that was left out took longer than the round: its length is the best estimate.
  const double share =
      rounds.empty() ? 1 : std::max(1.0, units / static_cast<double>(rounds.size()));
  for (const WorkerId worker : record.excluded) {
    WorkerTimes& times = run->workers[worker.value];
    ++times.rounds_excluded;
    times.unit_at_least.emplace_back(start, length / share);
  }
}

// A bound counts where the measurements before and after it are lower.
void AddBounds(WorkerTimes* times) {
  const UnitTimes known = std::move(times->unit);
  times->unit = {};
  auto bound = times->unit_at_least.begin();
  const auto add_bounds_before = [&](double at) {
    for (; bound != times->unit_at_least.end() && bound->first < at; ++bound) {
      const auto& [start, least] = *bound;
      times->unit.Add(start, known.empty() ? least : std::max(least, known.MedianAt(start)));
    }
  };
  known.ForEach([&](double start, double seconds, std::uint64_t units) {
    add_bounds_before(start);
    times->unit.Add(start, seconds, units);
  });
  add_bounds_before(std::numeric_limits<double>::infinity());
}

// Workers without measurements get the median of the others.
void FillGaps(RunTimes* run) {
  std::vector<double> medians;
  for (WorkerTimes& times : run->workers) {
    if (!times.unit.empty()) medians.push_back(times.unit.Median());
    AddBounds(&times);
  }
  const double usual_unit = MedianOf(std::move(medians));
  for (WorkerTimes& times : run->workers) {
    if (times.unit.empty()) times.unit.Add(0, usual_unit);
  }
  for (Measured WorkerTimes::*quantity : {&WorkerTimes::delivery, &WorkerTimes::begin}) {
    medians.clear();
    for (WorkerTimes& times : run->workers) {
      (times.*quantity).Sort();
      if (!(times.*quantity).empty()) medians.push_back((times.*quantity).Median());
    }
    const double usual = MedianOf(medians);
    for (WorkerTimes& times : run->workers) {
      if ((times.*quantity).empty()) (times.*quantity).Add(0, usual);
    }
  }
}

bool Has(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

constexpr const char* kPlugin = "plugin";

// The reason why the policy `plugin` is not played: a run directory is data, and must not choose
// the code that its reader runs.
std::string NotLoaded(const SimulateOptions& options) {
  return options.plugin_of_run.empty()
             ? "policy.name = plugin: --policy.plugin must name the shared library"
             : fmt::format("the run's config names the plug-in {}; --policy.plugin=FILE loads one",
                           Quoted(options.plugin_of_run));
}

}  // namespace

void Measured::Sort() {
  std::stable_sort(points_.begin(), points_.end(),
                   [](const Point& a, const Point& b) { return a.at < b.at; });
}

double Measured::At(double at) const {
  const auto after = std::upper_bound(points_.begin(), points_.end(), at,
                                      [](double t, const Point& point) { return t < point.at; });
  if (after == points_.begin()) return points_.front().value;
  const Point& before = *std::prev(after);
  if (after == points_.end() || after->at <= before.at) return before.value;
  const double part = (at - before.at) / (after->at - before.at);
  return before.value + part * (after->value - before.value);
}

double Measured::Longest() const {
  double longest = 0;
  for (const Point& point : points_) longest = std::max(longest, point.value);
  return longest;
}

double Measured::Median() const {
  std::vector<double> values;
  for (const Point& point : points_) values.push_back(point.value);
  return MedianOf(std::move(values));
}

void UnitTimes::Add(double round_start, double seconds, std::uint64_t units) {
  LOCKSTEP_CHECK(rounds_.empty() || rounds_.back().start <= round_start, "rounds out of order");
  if (rounds_.empty() || rounds_.back().start < round_start) rounds_.push_back({round_start, {}});
  std::vector<Equal>& times = rounds_.back().times;
  times.push_back({seconds, units + (times.empty() ? 0 : times.back().units)});
}

const UnitTimes::Round& UnitTimes::RoundAt(double at) const {
  LOCKSTEP_CHECK(!empty(), "no unit was measured");
  const auto after =
      std::upper_bound(rounds_.begin(), rounds_.end(), at,
                       [](double time, const Round& round) { return time < round.start; });
  return after == rounds_.begin() ? *after : *std::prev(after);
}

double UnitTimes::Draw(double at, RandomStream& random) const {
  const Round& round = RoundAt(at);
  const std::uint64_t drawn = random.NextBelow(round.times.back().units);
  const auto found =
      std::upper_bound(round.times.begin(), round.times.end(), drawn,
                       [](std::uint64_t unit, const Equal& equal) { return unit < equal.units; });
  return found->seconds;
}

double UnitTimes::MedianAt(double at) const {
  std::vector<Weighted> values;
  std::uint64_t before = 0;
  for (const Equal& equal : RoundAt(at).times) {
    values.emplace_back(equal.seconds, equal.units - before);
    before = equal.units;
  }
  return MedianOf(std::move(values));
}

double UnitTimes::Median() const {
  std::vector<Weighted> values;
  ForEach(
      [&](double, double seconds, std::uint64_t units) { values.emplace_back(seconds, units); });
  return MedianOf(std::move(values));
}

void UnitTimes::ForEach(const std::function<void(double, double, std::uint64_t)>& visit) const {
  for (const Round& round : rounds_) {
    std::uint64_t before = 0;
    for (const Equal& equal : round.times) {
      visit(round.start, equal.seconds, equal.units - before);
      before = equal.units;
    }
  }
}

Result<std::vector<coordinator::RoundRecord>> ReadRounds(const std::string& run_dir) {
  const std::string path = run_dir + "/rounds.jsonl";
  auto in = OpenRegularFile(path);
  if (!in) return in.error();
  return ReadRounds(*in, path);
}

Result<std::vector<coordinator::RoundRecord>> ReadRounds(std::istream& lines,
                                                         const std::string& name) {
  std::vector<coordinator::RoundRecord> records;
  std::size_t number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    const auto wrong = [&](const std::string& what) {
      return Error{ErrorCode::kInvalid, fmt::format("{}:{}: {}", name, number, what)};
    };
    auto record = coordinator::RoundFromLine(line);
    if (!record) return wrong(record.error().message);
    if (const Status fits = CheckRound(*record); !fits) return wrong(fits.error().message);
    if (!records.empty()) {
      const Status follows = CheckOrder(records.back(), *record);
      if (!follows) return wrong(follows.error().message);
    }
    records.push_back(*std::move(record));
  }
  return records;
}

Status CheckReplay(const JobConfig& job, const RunTimes& run) {
  const auto workers = static_cast<std::uint32_t>(run.workers.size());
  const std::uint64_t least =
      std::uint64_t{workers} * (job.policy.local() ? job.policy.local_steps : 1);
  const std::uint32_t batch = job.job.global_batch;
  if (batch < least || (job.job.units != 0 && job.job.units < least)) {
    return Unplayable(
        fmt::format("job.global_batch = {} and job.units = {} are too few for the {} workers in "
                    "its rounds",
                    batch, job.job.units, workers));
  }
  // The time of all rounds if one worker computes them at the worst measured speed. Virtual time
  // has an end, too.
  double unit = 0;
  double between = 0;
  for (const WorkerTimes& times : run.workers) {
    times.unit.ForEach(
        [&unit](double, double seconds, std::uint64_t) { unit = std::max(unit, seconds); });
    between = std::max(between, times.delivery.Longest() + times.begin.Longest());
  }
  const double units = job.job.units > 0 ? job.job.units : std::max(4.0 * workers, 4096.0);
  const double alone = (units + batch / run.unit_samples) + run.run_cost * units;
  const double longest = static_cast<double>(run.rounds) * (alone * unit + between);
  constexpr double kMost = 4e9;
  if (!(longest < kMost)) {
    return Unplayable(fmt::format("{} rounds with units of {:.0f} s are too long to be played",
                                  run.rounds, unit));
  }
  return {};
}

Result<RunTimes> MeasureRun(const std::vector<coordinator::RoundRecord>& records) {
  if (records.empty()) return Unplayable("the run has no closed round");
  RunTimes run;
  run.workers.resize(WorkersOf(records));
  if (run.workers.empty()) return Unplayable("the run's rounds have no units");
  std::vector<Weighted> sizes;
  RunCostFit fit;
  for (const auto& record : records) {
    for (const auto& [worker, entries] : ByWorker(record)) fit.AddRound(entries);
  }
  run.run_cost = fit.in_units();
  for (const auto& record : records) {
    AddRound(record, records.front().start, &run);
    ++run.rounds;
    run.samples += record.samples;
    for (const auto& unit : record.units) {
      run.epoch_samples = std::max(run.epoch_samples, unit.range.to);
      sizes.emplace_back(static_cast<double>(unit.range.size()) / static_cast<double>(unit.units),
                         unit.units);
    }
  }
  FillGaps(&run);
  run.ranges.Sort();
  run.factors = WorkerFactorsIfTimesAreOfSamples(
      records, static_cast<std::uint32_t>(run.workers.size()), run.run_cost);
  run.unit_samples = std::max(MedianOf(std::move(sizes)), 1.0);
  run.seconds = records.back().commit - records.front().start;
  if (run.seconds <= 0) return Unplayable("the run's rounds took no time");
  if (run.samples == 0) return Unplayable("the run's rounds have no samples");
  for (const auto& record : records) {
    if (!Has(run.policies, record.policy)) run.policies.push_back(record.policy);
  }
  return run;
}

Duration ReplayCompute::UnitTime(WorkerId worker, Time now, RoundId, Epoch epoch, const Unit& unit,
                                 std::uint32_t run, RandomStream& random) {
  const double at = Seconds(now - start_);
  double units = 1;
  if (per_sample_) units = static_cast<double>(unit.range.size()) / run_->unit_samples;
  const std::optional<double> recorded = Recorded(worker, at, epoch, unit.range);
  const double usual =
      recorded ? *recorded / units : run_->workers[worker.value].unit.Draw(at, random);
  return std::max(FromSeconds(usual * (units + run_->run_cost / run)), Duration(1000));
}

std::optional<double> ReplayCompute::Recorded(WorkerId worker, double at, Epoch epoch,
                                              const SampleRange& range) const {
  const auto entries = run_->ranges.Find(epoch, range);
  if (entries.empty() || (!per_sample_ && entries.size() > 1)) return std::nullopt;
  double seconds = 0;
  for (const RangeTimes::Entry& entry : entries) {
    double factor = 1;
    if (!run_->factors.empty()) {
      factor = run_->factors[worker.value] / run_->factors[entry.worker.value];
    } else if (worker != entry.worker || std::abs(at - entry.start) > entry.round_seconds) {
      return std::nullopt;
    }
    const std::uint64_t samples =
        std::min(range.to, entry.range.to) - std::max(range.from, entry.range.from);
    const double share =
        per_sample_ ? static_cast<double>(samples) / static_cast<double>(entry.range.size())
                    : 1 / static_cast<double>(entry.units);
    seconds += entry.seconds * share * factor;
  }
  return seconds;
}

Result<Prediction> Predict(const SimulateOptions& options, const RunTimes& run,
                           const std::string& policy) {
  SimulateOptions job = options;
  job.workers = static_cast<std::uint32_t>(run.workers.size());
  job.exchange = "modelled";
  job.job.policy.name = policy;
  job.job.job.epochs = 0;
  job.job.job.rounds = run.rounds;
  job.job.job.min_workers = 1;
  job.train_samples = run.epoch_samples;
  // The measured times include all of that.
  job.network.latency = {};
  job.coordinator_cost = {};
  job.delivery = [&run](WorkerId worker, Duration since_start) {
    return FromSeconds(run.workers[worker.value].delivery.At(Seconds(since_start)));
  };
  job.begin = [&run](WorkerId worker, Duration since_start) {
    return FromSeconds(run.workers[worker.value].begin.At(Seconds(since_start)));
  };
  ReplayCompute compute(&run, Simulation::kStart,
                        options.job.emulate.unit_time_s == 0 || options.job.job.units == 0);
  Prediction prediction;
  std::optional<double> start;
  double commit = 0;
  auto outcome = SimulateJob(job, &compute, [&](const coordinator::RoundRecord& record) -> Status {
    if (!start) start = record.start;
    commit = record.commit;
    ++prediction.rounds;
    prediction.samples += record.samples;
    prediction.policy = record.policy;
    return {};
  });
  if (!outcome) return outcome.error();
  prediction.seconds = commit - start.value_or(0);
  return prediction;
}

Result<std::string> Replay(const SimulateOptions& options) {
  auto records = ReadRounds(options.replay);
  if (!records) return records.error();
  auto run = MeasureRun(*records);
  if (!run) return Error{run.error().code, options.replay + ": " + run.error().message};
  const auto workers = static_cast<std::uint32_t>(run->workers.size());
  SimulateOptions as_run = options;
  as_run.job = options.job_of_run;
  const std::array<const JobConfig*, 2> jobs = {&as_run.job, &options.job};
  for (const JobConfig* job : jobs) {
    if (const Status fits = CheckReplay(*job, *run); !fits) {
      return Error{fits.error().code, options.replay + ": " + fits.error().message};
    }
  }
  // The policy of the run, by its name in the registry. A plug-in has a name of its own.
  const bool ran_plugin = options.job_of_run.policy.name == kPlugin;
  const std::string as_it_ran = ran_plugin ? kPlugin : run->policies.front();
  // Then no predicted job reproduces the run.
  const bool changed = run->policies.size() > 1;
  std::vector<std::string> names;
  const auto add = [&names](const std::string& name) {
    if (!Has(names, name)) names.push_back(name);
  };
  if (!options.policy_given && changed) {
    for (const std::string& name : run->policies) {
      // A rule that these settings refuse gets a line with the reason.
      PolicySection defaults;
      defaults.name = name;
      add(policies::MakePolicy(defaults, kMaxWorkers).ok() ? name : kPlugin);
    }
  } else if (!options.policy_given && ToIni(options.job) != ToIni(options.job_of_run)) {
    add(as_it_ran);
  }
  if (options.policy_given) {
    if (options.job.policy.name == kPlugin && options.job.policy.plugin.empty()) {
      return Unplayable(NotLoaded(options));
    }
    PolicySection section = options.job.policy;
    auto policy = policies::MakePolicy(section, workers, coordinator::LoadPolicy);
    if (!policy) return policy.error();
    add(section.name == kPlugin ? section.name : policy->name);
  } else {
    for (const std::string& closing : policies::ClosingRuleNames()) {
      for (const std::string& work : policies::WorkRuleNames()) add(closing + "+" + work);
    }
    add("auto");
  }

  std::string ran_under;
  for (const std::string& name : run->policies) {
    ran_under += (ran_under.empty() ? "" : ", then ") + name;
  }
  const auto rounds = static_cast<double>(run->rounds);
  const double real_rate = static_cast<double>(run->samples) / run->seconds;
  std::string text = fmt::format(
      "{}: {} rounds of {} workers under {}, {:.3f} ms a round, {:.0f} samples/s\n\n",
      options.replay, run->rounds, workers, ran_under, 1e3 * run->seconds / rounds, real_rate);
  text += fmt::format("{:<24} {:>14} {:>14} {:>18} {:>18}\n", "policy", "ms a round", "samples/s",
                      "rounds, times", "samples, times");
  std::optional<Prediction> of_the_run;
  const auto play = [&](const SimulateOptions& how, const std::string& name, bool as_it_was) {
    if (name == kPlugin && options.job.policy.plugin.empty()) {
      if (!as_it_was && !changed) return;
      text += fmt::format("{:<24} left out: {}\n", as_it_was ? run->policies.front() : name,
                          NotLoaded(options));
      return;
    }
    auto prediction = Predict(how, *run, name);
    if (!prediction) {
      text += fmt::format("{:<24} {}\n", name, prediction.error().message);
      return;
    }
    // Settings without effect make no row of their own.
    if (!as_it_was && of_the_run && *prediction == *of_the_run) return;
    const double per_round = prediction->seconds / static_cast<double>(prediction->rounds);
    const double rate = static_cast<double>(prediction->samples) / prediction->seconds;
    text += fmt::format("{:<24} {:>14.3f} {:>14.0f} {:>18.2f} {:>18.2f}{}\n", prediction->policy,
                        1e3 * per_round, rate, run->seconds / rounds / per_round, rate / real_rate,
                        as_it_was ? "  (as it ran)" : "");
    if (as_it_was) of_the_run = *std::move(prediction);
  };
  if (!changed) play(as_run, as_it_ran, true);
  for (const std::string& name : names) play(options, name, false);
  text += "\n'times': as fast as the real run. Predictions are from measured times, so emulated.\n";
  if (changed) text += "the policy changed in the run, so no row is of the run as it ran\n";
  for (std::uint32_t w = 0; w < workers; ++w) {
    const std::uint64_t excluded = run->workers[w].rounds_excluded;
    if (excluded == 0) continue;
    text += fmt::format(
        "worker {} was left out of {} rounds; of those it is only known that it "
        "took longer, so waiting for it is taken for too cheap\n",
        w, excluded);
  }
  return text;
}

}  // namespace lockstep::simulate
