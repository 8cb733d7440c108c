#include "tools/bench/tune_bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/host_port.h"
#include "tools/bench/descent.h"
#include "tools/bench/exchange_worker.h"
#include "tools/bench/report.h"
#include "tools/bench/tune_worker.h"
#include "worker/compute/devices.h"

namespace lockstep::bench {
namespace {

constexpr std::uint32_t kWarmUp = 3;  // rounds
// The best choice and the defaults are measured again in turn: those that led to it were the
// luckiest of many.
std::uint32_t Confirmations(std::uint32_t pairs) { return std::max(2 * pairs, 5u); }

// A measured job.
struct Outcome {
  double median_ms = 0;
  std::string transport;
  std::set<std::string> paths;
};

// "connections = 4, window = 16"
std::string InWords(const Choice& choice) {
  std::string text;
  for (const auto& [name, value] : choice) {
    text +=
        fmt::format("{}{} = {}", text.empty() ? "" : ", ", name.substr(name.find('.') + 1), value);
  }
  return text;
}

// UCX_TCP_RX_SEG_SIZE stands for both directions.
bool IsEnvironment(const std::string& name) { return name.starts_with("UCX_"); }

Result<std::string> ConfigOf(const TuneOptions& options, std::uint32_t bytes,
                             const Choice& choice) {
  const std::uint32_t rounds = options.rounds + kWarmUp;
  TunedJob job{.parameters = bytes / sizeof(float),
               .samples = std::uint64_t{options.workers} * (rounds + 1),
               .environment = {}};
  std::vector<Setting> settings = options.settings;
  for (const auto& [name, value] : choice) {
    if (IsEnvironment(name)) {
      job.environment[name] = value;
      if (name == "UCX_TCP_RX_SEG_SIZE") job.environment["UCX_TCP_TX_SEG_SIZE"] = value;
    } else {
      settings.push_back({name, value});
    }
  }
  settings.push_back({"data.path", ToText(job)});
  const std::string text = fmt::format(
      "[job]\nrounds = {0}\nglobal_batch = {1}\nunits = {1}\nmin_workers = {1}\n"
      "join_timeout = 1h\n[policy]\nname = full\n"
      "[exchange]\ntransport = {2}\nmapping = {3}\n[liveness]\ntimeout = 60s\n"
      "[evaluation]\nevery_epochs = 0\n[checkpoint]\nevery_epochs = 0\n",
      rounds, options.workers, options.transport, options.mapping);
  auto config = ParseJobConfig(text, "lockstep-bench", settings);
  if (!config) return config.error();
  return ToIni(*config);
}

// The time from the last gradient that is ready to the last worker that has its parameters updated.
// It uses the coordinator's clock: workers on other hosts have clocks of their own.
std::vector<double> RoundsOf(const std::filesystem::path& run_dir) {
  std::vector<double> all;
  std::ifstream in(run_dir / "rounds.jsonl");
  for (std::string line; std::getline(in, line);) {
    const auto round = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!round.is_object() || !round.contains("times")) continue;
    const auto& times = round["times"];
    if (!times["applied"].is_number() || times["ready"].empty()) continue;
    double ready = 0;
    for (const auto& at : times["ready"]) ready = std::max(ready, at.get<double>());
    all.push_back((times["applied"].get<double>() - ready) * 1e3);
  }
  all.erase(all.begin(), all.begin() + std::min<std::ptrdiff_t>(kWarmUp, std::ssize(all)));
  return all;
}

class Tuning {
 public:
  Tuning(const TuneOptions& options, Signals& signals) : options_(options), signals_(signals) {}

  Status Run();

 private:
  Status Prepare();
  Result<Outcome> RunJob(std::uint32_t bytes, const Choice& choice);
  // Compares this choice and the defaults in turn over all sizes: the mean of the ratios.
  Result<Comparison> Compare(const Choice& choice, const std::string& what);
  std::vector<Knob> Knobs(const Outcome& defaults) const;
  bool Fits(const Choice& choice) const;
  bool IsSet(const std::string& key) const {
    return std::ranges::find(options_.settings, key, &Setting::key) != options_.settings.end();
  }
  // How far the defaults' own runs are from each other, as a share of their median.
  double Spread() const;
  // It must gain more than that, and win three quarters of the comparisons.
  bool IsQuicker() const {
    return !confirmed_.empty() && Middle(confirmed_) < 1 - Spread() &&
           Quantile(confirmed_, 0.75) < 1;
  }
  void Progress(const std::string& what);
  std::string Report(const Descent& found);
  std::string Lines(const Choice& choice) const;
  std::string Json(const Descent& found) const;

  const TuneOptions& options_;
  Signals& signals_;
  std::string host_ = "127.0.0.1";
  std::uint16_t port_ = 0;
  Outcome first_;
  std::vector<double> confirmed_;  // ratios of the best
  std::string best_failed_;        // why it cannot be used after all; empty: it can
  std::size_t jobs_ = 0;
  std::size_t most_jobs_ = 0;
  std::map<std::uint32_t, std::vector<double>> defaults_ms_;  // by size
  std::map<Choice, std::map<std::uint32_t, std::vector<double>>> choices_ms_;
};

Status Tuning::Prepare() {
  if (Status there = worker::CheckDevice(options_.device); !there) {
    return Error{ErrorCode::kInvalid, "--device " + there.error().message};
  }
  if (Status writable = CheckReport(options_.json); !writable) return writable;
  if (options_.listen.empty()) return {};
  host_ = options_.listen;
  if (const auto address = ParseHostPort(options_.listen)) {
    host_ = address->host;
    port_ = address->port;
  }
  return {};
}

Result<Outcome> Tuning::RunJob(std::uint32_t bytes, const Choice& choice) {
  auto config = ConfigOf(options_, bytes, choice);
  if (!config) return config.error();
  auto folder = TempFolder::Make();
  if (!folder) return folder.error();
  const std::filesystem::path meeting = folder->path() / "meeting";
  const bool all_here = options_.listen.empty();
  if (all_here) {
    if (Status prepared = Meeting::Prepare(meeting, options_.workers); !prepared) {
      return prepared.error();
    }
  }
  auto coordinator = StartCoordinator(options_.workers, *config, folder->path(), signals_,
                                      {host_, port_, options_.secret_file});
  if (!coordinator) return coordinator.error();
  // The next coordinators listen at the same address, where the workers of other hosts look for
  // them.
  port_ = coordinator->port;
  const std::string address = ToString(HostPort{host_, port_});
  if (jobs_ == 0 && options_.here < options_.workers) {
    std::fprintf(
        stderr,
        "start %u worker%s on the other hosts, with the same secret; they take part in all "
        "jobs:\n  lockstep-bench %s --coordinator %s --secret-file FILE\n",
        options_.workers - options_.here, options_.workers - options_.here == 1 ? "" : "s",
        kExchangeWorkerCommand, address.c_str());
  }
  std::vector<Child> workers;
  workers.reserve(options_.here);
  for (std::uint32_t i = 0; i < options_.here; ++i) {
    std::vector<std::string> words = {
        kExchangeWorkerCommand, "--once", "--coordinator", address, "--device", options_.device};
    if (!options_.secret_file.empty()) {
      words.insert(words.end(), {"--secret-file", options_.secret_file});
    }
    if (all_here) words.insert(words.end(), {"--meeting", meeting.string()});
    auto child =
        Child::Start("lockstep-bench", words, folder->path() / fmt::format("worker-{}.log", i));
    if (!child) return child.error();
    workers.push_back(std::move(*child));
  }
  std::vector<Child*> all = {&coordinator->process};
  for (Child& worker : workers) all.push_back(&worker);
  if (Status ended = WaitForAll(std::move(all), signals_); !ended) return ended.error();
  ++jobs_;

  Outcome outcome;
  const std::filesystem::path run_dir = folder->path() / "run";
  const std::vector<double> rounds = RoundsOf(run_dir);
  if (rounds.empty()) return Error{ErrorCode::kClosed, "no round was applied by all workers"};
  outcome.median_ms = Median(rounds);
  std::ifstream in(run_dir / "summary.json");
  const auto summary = nlohmann::json::parse(in, nullptr, /*allow_exceptions=*/false);
  if (summary.is_object()) {
    outcome.transport = summary.value("transport", "");
    for (const auto& path : summary.value("paths", nlohmann::json::array())) {
      outcome.paths.insert(path.value("path", ""));
    }
  }
  return outcome;
}

Result<Comparison> Tuning::Compare(const Choice& choice, const std::string& what) {
  double logarithms = 0;
  for (const std::uint32_t bytes : options_.bytes) {
    // The order alternates, so that a machine that gets slower or faster favours neither.
    const bool defaults_first = choices_ms_[choice][bytes].size() % 2 == 0;
    double ms[2] = {};  // of the defaults, of the choice
    for (const bool defaults : {defaults_first, !defaults_first}) {
      auto outcome = RunJob(bytes, defaults ? Choice() : choice);
      if (!outcome && !defaults && !IsInterrupted(outcome.error())) {
        // The defaults have worked: these machines refuse these settings.
        Progress(fmt::format("{}, {} bytes: {}", what, bytes, outcome.error().message));
        return Comparison{.ratio = 0, .failed = outcome.error().message};
      }
      if (!outcome) return outcome.error();
      ms[defaults ? 0 : 1] = outcome->median_ms;
    }
    defaults_ms_[bytes].push_back(ms[0]);
    choices_ms_[choice][bytes].push_back(ms[1]);
    logarithms += std::log(ms[1] / ms[0]);
    Progress(fmt::format("{}, {} bytes: {:.2f} ms, defaults {:.2f} ms", what, bytes, ms[1], ms[0]));
  }
  return Comparison{.ratio = std::exp(logarithms / static_cast<double>(options_.bytes.size())),
                    .failed = {}};
}

void Tuning::Progress(const std::string& what) {
  std::fprintf(stderr, "%zu of at most %zu jobs: %s\n", jobs_, most_jobs_, what.c_str());
}

std::vector<Knob> Tuning::Knobs(const Outcome& defaults) const {
  std::vector<Knob> knobs;
  const auto add = [&](Knob knob) {
    if (!IsSet(knob.name)) knobs.push_back(std::move(knob));
  };
  if (defaults.transport == "tcp") add({"exchange.connections", "1", {"1", "2", "4", "8"}});
  add({"exchange.window", "8", {"2", "4", "8", "16", "32"}});
  add({"exchange.piece_bytes", "1MiB", {"256KiB", "512KiB", "1MiB", "2MiB", "4MiB"}});
  // UCX_RNDV_THRESH and similar variables change nothing: each send sets whether it is a
  // rendezvous.
  const bool over_tcp = std::ranges::any_of(defaults.paths, [](const std::string& path) {
    return path.find("tcp/") != std::string::npos;
  });
  if (defaults.transport == "ucx" && over_tcp)
    add({"UCX_TCP_RX_SEG_SIZE", "256k", {"64k", "256k", "1m"}});
  return knobs;
}

bool Tuning::Fits(const Choice& choice) const {
  // The job's own rules apply.
  return ConfigOf(options_, options_.bytes.front(), choice).ok();
}

double Tuning::Spread() const {
  double widest = 0;
  for (const auto& [bytes, ms] : defaults_ms_) {
    widest = std::max(widest, (Quantile(ms, 0.75) - Quantile(ms, 0.25)) / Median(ms));
  }
  return widest;
}

std::string Tuning::Lines(const Choice& choice) const {
  std::string section;
  std::string environment;
  for (const auto& [name, value] : choice) {
    if (!IsEnvironment(name)) {
      section += fmt::format("{} = {}\n", name.substr(name.find('.') + 1), value);
      continue;
    }
    environment += fmt::format("{}={}\n", name, value);
    if (name == "UCX_TCP_RX_SEG_SIZE")
      environment += fmt::format("UCX_TCP_TX_SEG_SIZE={}\n", value);
  }
  std::string text;
  if (!section.empty()) text += "\nin the job's config:\n[exchange]\n" + section;
  if (!environment.empty()) text += "\nin the environment of every worker:\n" + environment;
  return text;
}

std::string Tuning::Report(const Descent& found) {
  std::string paths;
  for (const std::string& path : first_.paths) paths += (paths.empty() ? "" : ", ") + path;
  std::string text = fmt::format("{} workers, {}\n", options_.workers, paths);
  std::vector<std::vector<std::string>> cells = {{"settings"}};
  for (const std::uint32_t bytes : options_.bytes) {
    cells[0].push_back(fmt::format("{} bytes, ms", bytes));
  }
  cells[0].insert(cells[0].end(), {"of the defaults", "runs"});
  cells.push_back({"defaults"});
  for (const std::uint32_t bytes : options_.bytes) {
    cells.back().push_back(fmt::format("{:.2f}", Median(defaults_ms_[bytes])));
  }
  cells.back().insert(cells.back().end(),
                      {"1.00", std::to_string(defaults_ms_.begin()->second.size())});
  std::string failures;
  for (const Tried& tried : found.tried) {
    cells.push_back({InWords(tried.choice)});
    if (!tried.failed.empty()) {
      cells.back().resize(1 + options_.bytes.size(), "-");
      cells.back().insert(cells.back().end(), {"failed", std::to_string(tried.ratios.size())});
      failures += fmt::format("\n{} failed: {}\n", InWords(tried.choice), tried.failed);
      continue;
    }
    for (const std::uint32_t bytes : options_.bytes) {
      cells.back().push_back(fmt::format("{:.2f}", Median(choices_ms_[tried.choice][bytes])));
    }
    cells.back().insert(cells.back().end(), {fmt::format("{:.2f}", tried.ratio()),
                                             std::to_string(tried.ratios.size())});
  }
  text += Table(cells) + failures;
  const std::string own =
      fmt::format("{:.0f} %, which the defaults' own runs differ by", Spread() * 100);
  if (IsQuicker()) {
    text += fmt::format(
        "\nquicker than the defaults: {:.2f} of their time, in runs after the search "
        "(more than {})\n{}",
        Middle(confirmed_), own, Lines(found.best));
  } else if (!best_failed_.empty()) {
    text += fmt::format("\nthe best failed when it was run again: {}: keep the defaults\n",
                        best_failed_);
  } else if (found.best.empty()) {
    text += "\nnothing is quicker than the defaults: keep them\n";
  } else {
    text += fmt::format(
        "\nnothing is quicker than the defaults by more than {} (the best: {:.2f} "
        "of their time): keep them\n",
        own, Middle(confirmed_));
  }
  if (options_.listen.empty()) {
    text +=
        "\nAll workers were on this machine, whose processors are the limit here. Between hosts "
        "other settings may be quickest: --listen.\n";
  }
  return text;
}

std::string Tuning::Json(const Descent& found) const {
  nlohmann::ordered_json out;
  out["workers"] = options_.workers;
  out["paths"] = first_.paths;
  out["transport"] = first_.transport;
  out["jobs"] = jobs_;
  out["defaults_ms"] = nlohmann::ordered_json::object();
  for (const auto& [bytes, ms] : defaults_ms_) out["defaults_ms"][std::to_string(bytes)] = ms;
  out["tried"] = nlohmann::ordered_json::array();
  for (const Tried& tried : found.tried) {
    out["tried"].push_back({{"settings", tried.choice}, {"ratios", tried.ratios}});
    if (!tried.failed.empty()) out["tried"].back()["failed"] = tried.failed;
  }
  out["spread"] = Spread();
  out["best"] = IsQuicker() ? found.best : Choice();
  out["best_ratios"] = confirmed_;
  if (!best_failed_.empty()) out["best_failed"] = best_failed_;
  return out.dump(2) + "\n";
}

Status Tuning::Run() {
  if (Status fine = Prepare(); !fine) return fine;
  auto first = RunJob(options_.bytes.front(), {});
  if (!first) return first.error();
  first_ = std::move(*first);
  const bool mapped = std::ranges::all_of(
      first_.paths, [](const std::string& path) { return path.starts_with("mapped"); });
  if (mapped) {
    return Error{ErrorCode::kInvalid,
                 "the workers read each other's memory, where none of these settings matters: "
                 "--mapping off"};
  }
  const std::vector<Knob> knobs = Knobs(first_);
  most_jobs_ = 1 + 2 * options_.bytes.size() *
                       (MostComparisons(knobs, options_.pairs) + Confirmations(options_.pairs));
  auto found = Descend(
      knobs, options_.pairs, [this](const Choice& choice) { return Fits(choice); },
      [this](const Tried& tried) {
        return Compare(tried.choice, fmt::format("{} = {}", tried.knob, tried.value));
      });
  if (!found) return found.error();
  for (std::uint32_t i = 0; !found->best.empty() && i < Confirmations(options_.pairs); ++i) {
    auto compared = Compare(found->best, "the best once more");
    if (!compared) return compared.error();
    if (!compared->failed.empty()) {
      best_failed_ = compared->failed;
      confirmed_.clear();
      break;
    }
    confirmed_.push_back(compared->ratio);
  }
  if (options_.json != "-") std::fputs(Report(*found).c_str(), stdout);
  return WriteReport(options_.json, Json(*found));
}

}  // namespace

Status RunTuneBench(const TuneOptions& options, Signals& signals) {
  return Tuning(options, signals).Run();
}

}  // namespace lockstep::bench
