#include "tools/bench/exchange_bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "tools/bench/exchange_phases.h"
#include "tools/bench/exchange_worker.h"
#include "tools/bench/report.h"
#include "worker/compute/devices.h"

namespace lockstep::bench {
namespace {

constexpr std::uint32_t kWarmUp = 3;  // rounds

struct Row {
  std::uint64_t bytes = 0;
  double median_us = 0;
  double p95_us = 0;
  double algbw_gb_per_s = 0;
  double busbw_gb_per_s = 0;
  std::array<double, kPhases.size()> phases_us = {};  // medians
  double copied_per_byte = 0;
  std::uint64_t peak_bytes = 0;  // of the worker whose buffers took most
};

struct Measured {
  Row row;
  std::set<std::string> paths;
};

std::string OptimizerText(const std::string& rule) {
  if (rule == "momentum") return "name = sgd\nmomentum = 0.9\n";
  return fmt::format("name = {}\nmomentum = 0\n", rule);
}

Result<std::string> ConfigOf(const ExchangeBenchOptions& options) {
  // It has a sample and a unit for each worker, and no end of an epoch before the job's.
  const std::string text = fmt::format(
      "[job]\nrounds = {}\nglobal_batch = {}\nunits = {}\n"
      "[optimizer]\n{}"
      "[exchange]\ntransport = {}\nmapping = {}\n[liveness]\ntimeout = 60s\n"
      "[evaluation]\nevery_epochs = 0\n[checkpoint]\nevery_epochs = 0\n",
      options.rounds + kWarmUp, options.workers, options.workers, OptimizerText(options.optimizer),
      options.transport, options.mapping);
  auto config = ParseJobConfig(text, "lockstep-bench", options.settings);
  if (!config) return config.error();
  return ToIni(*config);
}

std::filesystem::path ReportOf(const TempFolder& folder, std::uint32_t worker) {
  return folder.path() / fmt::format("worker-{}.report", worker);
}

Result<Row> RowOf(const ExchangeBenchOptions& options, std::uint64_t bytes,
                  const TempFolder& folder) {
  std::vector<WorkerReport> reports;
  for (std::uint32_t i = 0; i < options.workers; ++i) {
    auto report = ReadWorkerReport(ReportOf(folder, i));
    if (!report) return report.error();
    reports.push_back(std::move(*report));
  }
  const std::vector<RoundPhases> rounds = PhasesOf(reports, kWarmUp);
  if (rounds.empty()) return Error{ErrorCode::kClosed, "no round was applied by all workers"};
  std::vector<double> totals;
  for (const RoundPhases& round : rounds) totals.push_back(round.total_us);
  Row row;
  row.bytes = bytes;
  row.median_us = Median(totals);
  row.p95_us = Quantile(totals, 0.95);
  row.algbw_gb_per_s = static_cast<double>(bytes) / row.median_us / 1e3;
  row.busbw_gb_per_s = row.algbw_gb_per_s * 2 * (options.workers - 1) / options.workers;
  for (std::size_t i = 0; i < kPhases.size(); ++i) {
    std::vector<double> times;
    for (const RoundPhases& round : rounds) times.push_back(round.phases_us[i]);
    row.phases_us[i] = Median(std::move(times));
  }
  row.copied_per_byte = CopiedPerByte(reports, kWarmUp, bytes);
  for (const WorkerReport& report : reports) {
    row.peak_bytes = std::max(row.peak_bytes, report.peak_bytes);
  }
  return row;
}

std::set<std::string> PathsOf(const std::filesystem::path& summary) {
  std::ifstream in(summary);
  const auto text = nlohmann::json::parse(in, nullptr, /*allow_exceptions=*/false);
  std::set<std::string> paths;
  if (!text.is_object()) return paths;
  for (const auto& path : text.value("paths", nlohmann::json::array())) {
    paths.insert(path.value("path", ""));
  }
  return paths;
}

Result<Measured> Measure(const ExchangeBenchOptions& options, std::uint64_t bytes,
                         Signals& signals) {
  auto config = ConfigOf(options);
  if (!config) return config.error();
  auto folder = TempFolder::Make();
  if (!folder) return folder.error();
  const std::filesystem::path meeting = folder->path() / "meeting";
  if (Status prepared = Meeting::Prepare(meeting, options.workers); !prepared) {
    return prepared.error();
  }
  auto coordinator = StartCoordinator(options.workers, *config, folder->path(), signals);
  if (!coordinator) return coordinator.error();
  const std::uint64_t samples = std::uint64_t{options.workers} * (options.rounds + kWarmUp + 1);
  std::vector<Child> workers;
  workers.reserve(options.workers);
  for (std::uint32_t i = 0; i < options.workers; ++i) {
    auto child =
        Child::Start("lockstep-bench",
                     {kExchangeWorkerCommand, fmt::format("127.0.0.1:{}", coordinator->port),
                      std::to_string(bytes / sizeof(float)), std::to_string(samples),
                      meeting.string(), options.device, ReportOf(*folder, i).string(),
                      std::to_string(FromSeconds(options.idle).count())},
                     folder->path() / fmt::format("worker-{}.log", i));
    if (!child) return child.error();
    workers.push_back(std::move(*child));
  }
  std::vector<Child*> all = {&coordinator->process};
  for (Child& worker : workers) all.push_back(&worker);
  if (Status ended = WaitForAll(std::move(all), signals); !ended) return ended.error();

  auto row = RowOf(options, bytes, *folder);
  if (!row) return row.error();
  Measured result;
  result.row = *row;
  result.paths = PathsOf(folder->path() / "run" / "summary.json");
  return result;
}

std::string Json(const ExchangeBenchOptions& options, const std::vector<Row>& rows,
                 const std::set<std::string>& paths) {
  nlohmann::ordered_json out;
  out["workers"] = options.workers;
  out["paths"] = paths;
  out["optimizer"] = options.optimizer;
  out["idle_s"] = options.idle;
  out["rows"] = nlohmann::ordered_json::array();
  for (const Row& row : rows) {
    nlohmann::ordered_json phases;
    for (std::size_t i = 0; i < kPhases.size(); ++i) {
      phases[std::string(kPhases[i])] = row.phases_us[i];
    }
    out["rows"].push_back({{"bytes", row.bytes},
                           {"median_us", row.median_us},
                           {"p95_us", row.p95_us},
                           {"algbw_gb_per_s", row.algbw_gb_per_s},
                           {"busbw_gb_per_s", row.busbw_gb_per_s},
                           {"phases_us", phases},
                           {"copied_per_byte", row.copied_per_byte},
                           {"peak_bytes", row.peak_bytes}});
  }
  return out.dump(2) + "\n";
}

std::string TableOf(const std::vector<Row>& rows) {
  std::vector<std::vector<std::string>> cells = {
      {"bytes", "median us", "p95 us", "algbw GB/s", "busbw GB/s"}};
  for (const std::string_view phase : kPhases) cells[0].push_back(fmt::format("{} us", phase));
  cells[0].insert(cells[0].end(), {"copied", "peak"});
  for (const Row& row : rows) {
    cells.push_back({std::to_string(row.bytes), fmt::format("{:.0f}", row.median_us),
                     fmt::format("{:.0f}", row.p95_us), fmt::format("{:.3f}", row.algbw_gb_per_s),
                     fmt::format("{:.3f}", row.busbw_gb_per_s)});
    for (const double us : row.phases_us) cells.back().push_back(fmt::format("{:.0f}", us));
    cells.back().push_back(fmt::format("{:.2f}", row.copied_per_byte));
    cells.back().push_back(fmt::format(
        "{:.2f}", static_cast<double>(row.peak_bytes) / static_cast<double>(row.bytes)));
  }
  return Table(cells);
}

}  // namespace

Status RunExchangeBench(const ExchangeBenchOptions& options, Signals& signals) {
  if (Status there = worker::CheckDevice(options.device); !there) {
    return Error{ErrorCode::kInvalid, "--device " + there.error().message};
  }
  if (Status writable = CheckReport(options.json); !writable) return writable;
  std::vector<Row> rows;
  std::set<std::string> paths;
  for (const std::uint32_t bytes : options.bytes) {
    auto result = Measure(options, bytes, signals);
    if (!result) return result.error();
    rows.push_back(result->row);
    paths.insert(result->paths.begin(), result->paths.end());
  }
  if (options.json != "-") {
    std::string ways;
    for (const std::string& path : paths) ways += (ways.empty() ? "" : ", ") + path;
    std::printf("%u workers, %s\n%s", options.workers, ways.c_str(), TableOf(rows).c_str());
  }
  return WriteReport(options.json, Json(options, rows, paths));
}

}  // namespace lockstep::bench
