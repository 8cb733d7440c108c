#include "tools/bench/coordinator_bench.h"

#include <fmt/format.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "base/check.h"
#include "tools/bench/load.h"
#include "tools/bench/report.h"

namespace lockstep::bench {
namespace {

constexpr std::uint32_t kWarmUp = 10;  // rounds, or fewer where fewer are measured

// Processor time of another process.
struct ProcessorTime {
  Duration all{};     // exact
  Duration user{};    // in ticks of the kernel
  Duration system{};  // likewise
};

ProcessorTime TimeOf(pid_t pid) {
  ProcessorTime time;
  ::clockid_t clock = 0;
  ::timespec now{};
  if (::clock_getcpuclockid(pid, &clock) == 0 && ::clock_gettime(clock, &now) == 0) {
    time.all = std::chrono::seconds(now.tv_sec) + std::chrono::nanoseconds(now.tv_nsec);
  }
  std::ifstream in(fmt::format("/proc/{}/stat", pid));
  std::string line;
  std::getline(in, line);
  // Behind the name, which may hold anything: state, then ten numbers before these two.
  std::istringstream rest(line.substr(std::min(line.size(), line.rfind(')') + 1)));
  std::string skipped;
  for (int i = 0; i < 11; ++i) rest >> skipped;
  std::int64_t user = 0;
  std::int64_t system = 0;
  rest >> user >> system;
  const std::int64_t tick_ns = 1'000'000'000 / ::sysconf(_SC_CLK_TCK);
  time.user = Duration(user * tick_ns);
  time.system = Duration(system * tick_ns);
  return time;
}

double Micros(Duration d) { return 1e6 * Seconds(d); }

struct Row {
  std::uint32_t workers = 0;
  std::size_t rounds = 0;
  double rounds_per_s = 0;
  double median_us = 0;  // of a round
  double p95_us = 0;
  double cpu_us = 0;  // of the coordinator, for a round
  double cpu_user_us = 0;
  double cpu_system_us = 0;
  double first_median_us = 0;  // from the last message to the commit
  double last_median_us = 0;
  double last_p95_us = 0;
};

// The notes of one job.
class Measurement {
 public:
  Measurement(std::uint32_t rounds, pid_t coordinator)
      : rounds_(rounds), warm_up_(std::min(kWarmUp, rounds)), coordinator_(coordinator) {}

  // Counts the warm-up, rounds with answers at once, one between, and rounds with spaced units.
  static std::uint64_t AllRounds(std::uint32_t rounds) {
    return std::min(kWarmUp, rounds) + 2 * std::uint64_t{rounds} + 2;
  }

  Duration OnCommit(const CommitSeen& seen) {
    const std::uint64_t round = seen.round.value;
    if (round == warm_up_) {
      begin_ = TimeOf(coordinator_);
      first_ = seen.first;
    } else if (round > warm_up_ && round <= warm_up_ + rounds_) {
      took_.push_back(Micros(seen.first - before_));
      if (round == warm_up_ + rounds_) {
        end_ = TimeOf(coordinator_);
        last_ = seen.first;
        space_ = std::max<Duration>(3 * (last_ - first_) / rounds_, std::chrono::milliseconds(1));
      }
    } else if (round > warm_up_ + rounds_ + 1) {
      to_first_.push_back(Micros(seen.first - seen.needed));
      to_last_.push_back(Micros(seen.last - seen.needed));
    }
    before_ = seen.first;
    return space_;
  }

  bool whole() const { return to_first_.size() >= rounds_; }

  Row Result(std::uint32_t workers) const {
    const auto per_round = [this](Duration from, Duration to) {
      return Micros(to - from) / static_cast<double>(took_.size());
    };
    Row row;
    row.workers = workers;
    row.rounds = took_.size();
    row.rounds_per_s = static_cast<double>(took_.size()) / Seconds(last_ - first_);
    row.median_us = Median(took_);
    row.p95_us = Quantile(took_, 0.95);
    row.cpu_us = per_round(begin_.all, end_.all);
    row.cpu_user_us = per_round(begin_.user, end_.user);
    row.cpu_system_us = per_round(begin_.system, end_.system);
    row.first_median_us = Median(to_first_);
    row.last_median_us = Median(to_last_);
    row.last_p95_us = Quantile(to_last_, 0.95);
    return row;
  }

 private:
  const std::uint32_t rounds_;
  const std::uint32_t warm_up_;
  const pid_t coordinator_;
  ProcessorTime begin_;
  ProcessorTime end_;
  Time first_;
  Time last_;
  Time before_;
  Duration space_{};
  std::vector<double> took_;
  std::vector<double> to_first_;
  std::vector<double> to_last_;
};

Result<std::string> ConfigOf(const CoordinatorBenchOptions& options, std::uint32_t workers) {
  const std::uint64_t units = std::uint64_t{workers} * options.units;
  // It has one sample a unit, and only rounds: no end of an epoch, no evaluation.
  const std::string text = fmt::format(
      "[job]\nrounds = {}\nglobal_batch = {}\nunits = {}\njoin_timeout = 10min\n"
      "[exchange]\ntransport = tcp\n[liveness]\ntimeout = 60s\n"
      "[evaluation]\nevery_epochs = 0\n[checkpoint]\nevery_epochs = 0\n",
      Measurement::AllRounds(options.rounds), units, units);
  auto config = ParseJobConfig(text, "lockstep-bench", options.settings);
  if (!config) return config.error();
  return ToIni(*config);
}

Result<Row> Measure(const CoordinatorBenchOptions& options, std::uint32_t workers,
                    Signals& signals) {
  auto config = ConfigOf(options, workers);
  if (!config) return config.error();
  if (Status allowed = AllowOpenFiles(std::uint64_t{workers} + 64); !allowed) {
    return Error{allowed.error().code,
                 fmt::format("--workers {}: {}", workers, allowed.error().message)};
  }
  auto folder = TempFolder::Make();
  if (!folder) return folder.error();
  auto coordinator = StartCoordinator(workers, *config, folder->path(), signals);
  if (!coordinator) return coordinator.error();
  Measurement measurement(options.rounds, coordinator->process.pid());
  LoadOptions load;
  load.workers = workers;
  load.units = options.units;
  load.train_samples =
      std::uint64_t{workers} * options.units * (Measurement::AllRounds(options.rounds) + 2);
  load.port = coordinator->port;
  {
    Load workers_of_job(load, [&](const CommitSeen& seen) { return measurement.OnCommit(seen); });
    if (Status ran = workers_of_job.Run(coordinator->process, signals); !ran) return ran.error();
  }
  const int status = *coordinator->process.Status();
  if (status != 0 || !measurement.whole()) {
    return Error{ErrorCode::kClosed,
                 fmt::format("{} workers: {}", workers, coordinator->process.HowItEnded())};
  }
  return measurement.Result(workers);
}

std::string Json(const std::vector<Row>& rows) {
  nlohmann::ordered_json out;
  out["rows"] = nlohmann::ordered_json::array();
  for (const Row& row : rows) {
    out["rows"].push_back({{"workers", row.workers},
                           {"rounds", row.rounds},
                           {"rounds_per_s", row.rounds_per_s},
                           {"median_us", row.median_us},
                           {"p95_us", row.p95_us},
                           {"cpu_us", row.cpu_us},
                           {"cpu_user_us", row.cpu_user_us},
                           {"cpu_system_us", row.cpu_system_us},
                           {"commit_first_median_us", row.first_median_us},
                           {"commit_median_us", row.last_median_us},
                           {"commit_p95_us", row.last_p95_us}});
  }
  return out.dump(2) + "\n";
}

std::string TableOf(const std::vector<Row>& rows) {
  std::vector<std::vector<std::string>> cells = {{"workers", "rounds/s", "median us", "p95 us",
                                                  "cpu us", "user", "system", "commit to first",
                                                  "to all us", "p95 us"}};
  for (const Row& row : rows) {
    cells.push_back({std::to_string(row.workers), fmt::format("{:.1f}", row.rounds_per_s)});
    for (const double us :
         {row.median_us, row.p95_us, row.cpu_us, row.cpu_user_us, row.cpu_system_us,
          row.first_median_us, row.last_median_us, row.last_p95_us}) {
      cells.back().push_back(fmt::format("{:.0f}", us));
    }
  }
  return Table(cells);
}

}  // namespace

Status RunCoordinatorBench(const CoordinatorBenchOptions& options, Signals& signals) {
  if (Status writable = CheckReport(options.json); !writable) return writable;
  std::vector<Row> rows;
  for (const std::uint32_t workers : options.workers) {
    auto row = Measure(options, workers, signals);
    if (!row) return row.error();
    rows.push_back(*row);
  }
  if (options.json != "-") std::fputs(TableOf(rows).c_str(), stdout);
  return WriteReport(options.json, Json(rows));
}

}  // namespace lockstep::bench
