#include "tools/simulate/options.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <functional>
#include <utility>

#include "base/emulated_unit.h"
#include "base/options.h"
#include "base/program_options.h"

namespace lockstep::simulate {
namespace {

Error Invalid(std::string message) { return {ErrorCode::kInvalid, std::move(message)}; }

OptionType<Setting> SettingOption() {
  OptionType<Setting> type;
  type.placeholder = std::string("KEY=VALUE");
  type.form = std::string("KEY=VALUE, as policy.name=backup");
  type.parse = [](std::string_view text) -> Result<Setting> {
    const std::size_t equals = text.find('=');
    if (equals == std::string_view::npos || equals == 0) {
      return Invalid("expected KEY=VALUE, as policy.name=backup");
    }
    return Setting{std::string(text.substr(0, equals)), std::string(text.substr(equals + 1))};
  };
  type.format = [](const Setting& value) { return value.key + "=" + value.value; };
  return type;
}

OptionType<SlowLink> SlowLinkOption() {
  OptionType<SlowLink> type;
  type.placeholder = std::string("W=BYTES");
  type.form = std::string("a worker and bytes in a second, as 3=10MiB");
  type.parse = [form = type.form](std::string_view text) -> Result<SlowLink> {
    const std::size_t equals = text.find('=');
    if (equals == std::string_view::npos) return Invalid("expected " + form);
    auto worker = Count(0, 4095).parse(text.substr(0, equals));
    if (!worker) return worker.error();
    auto bytes = Bytes(1, std::uint64_t{1} << 50).parse(text.substr(equals + 1));
    if (!bytes) return bytes.error();
    return SlowLink{*worker, static_cast<double>(*bytes)};
  };
  type.format = [](const SlowLink& value) {
    return fmt::format("{}={}", value.worker, static_cast<std::uint64_t>(value.bytes_per_second));
  };
  return type;
}

OptionType<Fault> FaultOption() {
  OptionType<Fault> type;
  type.placeholder = std::string("FAULT");
  type.form = std::string("as a failing seed prints it");
  type.parse = ParseFault;
  type.format = [](const Fault& fault) { return ToString(fault); };
  return type;
}

struct Seeds {
  std::uint64_t first = 1;
  std::uint64_t last = 100;
};

OptionType<Seeds> SeedsOption() {
  OptionType<Seeds> type;
  type.placeholder = std::string("FROM..TO");
  type.form = std::string("FROM..TO or one number");
  type.parse = [form = type.form](std::string_view text) -> Result<Seeds> {
    const auto number = WideCount(0, ~std::uint64_t{0} - 1).parse;
    const std::size_t dots = text.find("..");
    auto first = number(text.substr(0, dots));
    auto last = number(dots == std::string_view::npos ? text : text.substr(dots + 2));
    if (!first || !last || *last < *first) return Invalid("expected " + form);
    return Seeds{*first, *last};
  };
  type.format = [](const Seeds& seeds) { return fmt::format("{}..{}", seeds.first, seeds.last); };
  return type;
}

// The table's values in the units of the command line.
struct Raw {
  double unit_time_s = 0;
  double run_time_s = 0;
  double latency_s = 50e-6;
  std::uint64_t bandwidth = 1'250'000'000;
  std::uint64_t memory_bandwidth = 10'000'000'000;
  double coordinator_cost_s = 5e-6;
  double message_cost_s = 0;
  std::string costs = "unknown";
  std::vector<SlowLink> slow_links;
  Seeds seeds;
  bool help = false;
  bool version = false;
};

void DeclareJob(OptionTable& table, SimulateOptions* options) {
  OptionType<std::uint32_t> workers = Count(1, kMaxWorkers);
  workers.format = [](const std::uint32_t& value) {
    return value == 0 ? std::string() : std::to_string(value);
  };
  table.Group("A job on virtual time", "the files are those of a real one");
  table.Add("workers", &options->workers, workers,
            "Workers of the job; required. With --faults: of each job; without it 1 to 6, as many "
            "as the policy needs");
  table.Add("config", &options->config_file, Text("FILE", "an INI file"),
            "The job's config; without it all defaults hold");
  table.Add("run-dir", &options->run_dir, Text("DIR", "a folder"),
            "Where the records are written; required");
  table.AddRepeatable("set", &options->settings, SettingOption(),
                      "Overrides a key of the config, as --KEY=VALUE does");
  table.AddRepeatable("slowdown", &options->slowdowns, SlowdownOption(),
                      "Slows workers down; may be given more than once");
  table.Add("seed", &options->seed, WideCount(0, ~std::uint64_t{0}),
            "Seed of all that is drawn; without it job.seed. With --faults: the only seed that is "
            "run");
  table.Add("exchange", &options->exchange, Choice({"auto", "full", "modelled"}),
            "full: the workers' real cores send every message. modelled: receipts and "
            "publication are computed from the network's numbers; units and parts are real. "
            "auto: full up to 64 workers");
}

void DeclareModel(OptionTable& table, SimulateOptions* options, Raw* raw) {
  table.Group("The model", "how long things take");
  table.Add("unit-time", &raw->unit_time_s, DurationSeconds(0, 3600),
            "A unit's computation; 0s: emulate.unit_time, or 20ms where that is 0s too");
  table.Add(
      "unit-costs", &options->unit_costs, Text("FILE", "a CSV file"),
      "Times of the units on a worker of speed 1, instead of --unit-time: a CSV file with the "
      "header round,unit,seconds. They belong to the data, so a unit that moves keeps its "
      "own. A longer job begins again with round 0. Without job.units, the file's number "
      "holds");
  table.Add(
      "costs", &raw->costs, Choice({"unknown", "known"}),
      "known: with --unit-costs, the programs tell what their samples cost, and policies that "
      "move work share it out by that");
  table.Add("run-time", &raw->run_time_s, DurationSeconds(0, 3600),
            "Added time of a run, whatever the number of its units");
  table.Add("unit-spread", &options->unit.spread, Number(0, 10),
            "Spread of the units' times: standard deviation of their logarithm");
  table.Add("worker-spread", &options->unit.worker_spread, Number(0, 10),
            "Spread of the workers' speeds, each drawn once");
  table.Add("model-bytes", &options->model_bytes, Bytes(4, std::uint64_t{1} << 40),
            "Size of the parameters in FP32, of a contribution and of the sums. exchange.dtype and "
            "exchange.compression make contributions and sums smaller");
  table.Add("train-samples", &options->train_samples, WideCount(0, std::uint64_t{1} << 40),
            "Samples of the dataset; 0: data.synthetic_train, 50000 for cifar10, 60000 for idx");
  table.Add("latency", &raw->latency_s, DurationSeconds(0, 3600), "Latency of a message, one way");
  table.Add("bandwidth", &raw->bandwidth, Bytes(1, std::uint64_t{1} << 50),
            "Bytes in a second that a worker sends, and as many that it receives");
  table.AddRepeatable("slow-link", &raw->slow_links, SlowLinkOption(),
                      "Another bandwidth for one worker; may be given more than once");
  table.Add("rack", &options->network.rack, Count(0, kMaxWorkers),
            "Workers of a rack, by number, in a fat tree; 0: one switch for all");
  table.Add("oversubscription", &options->network.oversubscription, Number(1, 1000),
            "Bandwidth of a rack's workers together, divided by that of the rack's link");
  table.Add("message-cost", &raw->message_cost_s, DurationSeconds(0, 1),
            "Time that each end takes for a message between workers");
  table.Add("memory-bandwidth", &raw->memory_bandwidth, Bytes(1, std::uint64_t{1} << 50),
            "Bytes in a second that a sum or an update passes over");
  table.Add("coordinator-cost", &raw->coordinator_cost_s, DurationSeconds(0, 1),
            "Time that the coordinator takes for each message that it receives or sends");
}

void DeclareModes(OptionTable& table, SimulateOptions* options, Raw* raw) {
  table.Group("One exchange", "");
  table.AddSwitch("exchange-times", &options->exchange_times,
                  "Prints how long one exchange of --model-bytes among --workers takes with each "
                  "exchange.algorithm, in microseconds, as JSON; no job is run");
  table.Group("Faults", "small jobs with real floats, held to the invariants after every event");
  table.AddSwitch("faults", &options->faults,
                  "Runs the jobs of --seeds with faults, heals them, and demands that they finish");
  table.Add("seeds", &raw->seeds, SeedsOption(), "The jobs that are run");
  table.Add("jobs", &options->jobs, Count(1, 256), "How many run at a time; -j N is the same");
  table.AddSwitch("shrink", &options->shrink,
                  "Takes away faults that a failing seed does not need, and prints the last "
                  "events");
  table.AddSwitch("own-parameters", &options->own_parameters,
                  "Each worker comes with parameters of its own; the job begins with those of one");
  table.AddSwitch("history", &options->history, "Tells what happens in each job");
  table.AddSwitch("branches", &options->branches,
                  "Prints a table of the rare branches of the cores, and how often jobs have "
                  "reached each of them");
  table.AddRepeatable("fault", &options->fault_list, FaultOption(),
                      "A fault instead of those that the seed draws; may be given more than once");
  table.Group("What if", "");
  table.Add("replay", &options->replay, Text("RUNDIR", "a run directory"),
            "Takes the measured times out of a run's rounds.jsonl and plays them under other "
            "policies: those that --set or --policy.name names, else all. A plug-in of the run's "
            "config is loaded only if --policy.plugin names it, too");
  table.Group("Other", "");
  table.AddSwitch("version", &raw->version, "Print the version and end");
  table.AddSwitch("help", &raw->help, "Print this and end");
}

// The modes of the program; they exclude each other.
constexpr unsigned kJob = 1;
constexpr unsigned kExchangeTimes = 2;
constexpr unsigned kFaults = 4;
constexpr unsigned kReplay = 8;

struct Use {
  const char* option;
  unsigned in;  // modes in which it has an effect
};

// These are the options that have an effect only in some modes. A replay has some of the job's
// options by itself.
constexpr std::array kUses = {Use{"workers", kJob | kExchangeTimes | kFaults},
                              Use{"run-dir", kJob},
                              Use{"slowdown", kJob},
                              Use{"seed", kJob | kFaults | kReplay},
                              Use{"exchange", kJob},
                              Use{"unit-time", kJob},
                              Use{"unit-costs", kJob},
                              Use{"run-time", kJob},
                              Use{"unit-spread", kJob},
                              Use{"worker-spread", kJob},
                              Use{"model-bytes", kJob | kExchangeTimes},
                              Use{"train-samples", kJob},
                              Use{"latency", kJob | kExchangeTimes},
                              Use{"bandwidth", kJob | kExchangeTimes},
                              Use{"slow-link", kJob | kExchangeTimes},
                              Use{"rack", kJob | kExchangeTimes},
                              Use{"oversubscription", kJob | kExchangeTimes},
                              Use{"message-cost", kJob | kExchangeTimes},
                              Use{"memory-bandwidth", kJob | kExchangeTimes},
                              Use{"coordinator-cost", kJob},
                              Use{"seeds", kFaults},
                              Use{"jobs", kFaults},
                              Use{"shrink", kFaults},
                              Use{"own-parameters", kFaults},
                              Use{"history", kFaults},
                              Use{"branches", kFaults},
                              Use{"fault", kFaults},
                              Use{"job.rounds", kJob | kExchangeTimes | kFaults},
                              Use{"job.epochs", kJob | kExchangeTimes | kFaults},
                              Use{"job.min_workers", kJob | kExchangeTimes | kFaults}};

// An option without effect is an error: a user who gives --slowdown to a replay would believe that
// the table includes it.
Status CheckUses(const SimulateOptions& options, const std::function<bool(const char*)>& given) {
  const bool replay = !options.replay.empty();
  if (options.exchange_times + options.faults + replay > 1) return {};  // Check reports it
  const unsigned mode = options.exchange_times ? kExchangeTimes
                        : options.faults       ? kFaults
                        : replay               ? kReplay
                                               : kJob;
  const char* name = options.exchange_times ? "--exchange-times"
                     : options.faults       ? "--faults"
                                            : "--replay";
  for (const auto& [option, in] : kUses) {
    if ((in & mode) != 0 || !given(option)) continue;
    if (in == kFaults) return Invalid(fmt::format("--{}: goes with --faults only", option));
    return Invalid(fmt::format("--{}: does nothing with {}", option, name));
  }
  return {};
}

Status Check(const SimulateOptions& options) {
  if (options.exchange_times && (options.faults || !options.replay.empty())) {
    return Invalid("--exchange-times goes with neither --faults nor --replay");
  }
  if (options.exchange_times && options.workers < 2) {
    return Invalid("--exchange-times: it takes --workers 2 at least");
  }
  if (options.exchange_times && options.job.exchange.compressed()) {
    return Invalid("--exchange-times: all numbers are exchanged there, exchange.compression = " +
                   options.job.exchange.compression + " does nothing");
  }
  if (options.exchange_times) return {};
  if (options.faults && !options.replay.empty()) {
    return Invalid("--faults and --replay: only one of them");
  }
  if (options.faults) {
    if (options.workers > kFullWorkers) {
      return Invalid(fmt::format("--workers {}: with --faults at most {}, every message is carried",
                                 options.workers, kFullWorkers));
    }
    return {};
  }
  if (!options.replay.empty()) return {};
  if (options.workers == 0) return Invalid("--workers: required, as --workers 1000");
  if (options.run_dir.empty()) return Invalid("--run-dir: required, as --run-dir runs/a");
  if (options.job.job.global_batch < options.workers) {
    return Invalid(
        fmt::format("job.global_batch = {} is less than --workers {}: each needs at least one "
                    "sample",
                    options.job.job.global_batch, options.workers));
  }
  if (options.job.optimizer.Shards(options.workers) > 0 && !options.full()) {
    return Invalid(
        fmt::format("optimizer.replicas = {} is simulated with --exchange full only, "
                    "and at most {} workers",
                    options.job.optimizer.replicas, kFullWorkers));
  }
  const std::uint32_t units = options.job.job.units;
  if (units != 0 && units < options.workers) {
    return Invalid(fmt::format("job.units = {} is less than --workers {}: each needs at least one",
                               units, options.workers));
  }
  return {};
}

// The config without the command line and --config.
Result<JobConfig> ConfigOfRun(const SimulateOptions& options) {
  const std::string file = options.replay + "/config.ini";
  if (!std::filesystem::exists(file)) return options.job;
  JobConfig job;
  OptionTable table;
  DeclareJobOptions(table, &job);
  if (Status read = table.ReadFile(file); !read) return read.error();
  if (Status checked = CheckJobConfig(job); !checked) return checked.error();
  job.policy.plugin = options.job.policy.plugin;
  return job;
}

std::uint64_t TrainSamples(const DataSection& data) {
  if (data.format == "synthetic") return data.synthetic_train;
  return data.format == "cifar10" ? 50000 : 60000;
}

// Reads the file of --unit-costs, and fits the job to it.
Status TakeUnitCosts(SimulateOptions* options) {
  auto table = ReadCostTable(options->unit_costs);
  if (!table) return table.error();
  JobSection& job = options->job.job;
  if (job.units == 0) {
    job.units = table->units;
    if (Status checked = CheckJobConfig(options->job); !checked) return checked;
    if (Status checked = Check(*options); !checked) return checked;
  }
  const std::uint32_t units = UnitsOfRound(job.global_batch, job.units);
  if (units != table->units) {
    return Invalid(
        fmt::format("--unit-costs {}: it has {} units a round, the job {} (job.units = {}, "
                    "job.global_batch = {})",
                    options->unit_costs, table->units, units, job.units, job.global_batch));
  }
  options->unit.costs.emplace(*std::move(table), job.global_batch, options->train_samples);
  return {};
}

}  // namespace

Result<SimulateOptions> ParseSimulateOptions(std::span<const std::string> arguments) {
  SimulateOptions options;
  Raw raw;
  OptionTable table;
  DeclareJob(table, &options);
  DeclareModel(table, &options, &raw);
  DeclareModes(table, &options, &raw);
  DeclareJobOptions(table, &options.job);
  const auto asks = [&](std::string_view option) {
    return std::ranges::find(arguments, option) != arguments.end();
  };
  if (asks("--help")) {
    options.print = fmt::format(
        "lockstep-simulate {}: runs a job's coordinator and policies on virtual time, with "
        "simulated workers.\nOptions of the job, with a dot, may also stand in the config "
        "file\n\n{}",
        Version(), table.Help());
    return options;
  }
  if (asks("--version")) {
    options.print = fmt::format("lockstep-simulate {}\n", Version());
    return options;
  }
  std::vector<std::string> words(arguments.begin(), arguments.end());
  for (std::string& word : words) {
    if (word == "-j") {
      word = "--jobs";
    } else if (word.starts_with("-j") && word.size() > 2) {
      word = "--jobs=" + word.substr(2);
    }
  }
  if (Status read = table.ReadCommandLine(words); !read) return read.error();
  for (const Setting& setting : options.settings) {
    if (Status set = table.Set(setting.key, setting.value); !set) return set.error();
  }
  options.policy_given = table.Given("policy.name");
  // It runs before the file is read, which may be the run's own.
  const auto given = [&table](const char* option) { return table.Given(option); };
  if (Status used = CheckUses(options, given); !used) return used.error();
  if (table.Given("unit-costs") && table.Given("unit-time")) {
    return Invalid("--unit-time: does nothing with --unit-costs");
  }
  std::string file = options.config_file;
  const bool of_run = file.empty() && !options.replay.empty();
  if (of_run) file = options.replay + "/config.ini";
  const bool plugin_given = table.Given("policy.plugin");
  if (!file.empty()) {
    if (Status read = table.ReadFile(file); !read) return read.error();
  }
  if (of_run && !plugin_given) {
    options.plugin_of_run = std::exchange(options.job.policy.plugin, "");
  }
  if (Status checked = CheckJobConfig(options.job); !checked) return checked.error();
  if (Status checked = Check(options); !checked) return checked.error();
  if (!options.replay.empty()) {
    Result<JobConfig> of_the_run = ConfigOfRun(options);
    if (!of_the_run) return of_the_run.error();
    options.job_of_run = *std::move(of_the_run);
  }
  const bool simulated = options.replay.empty() && !options.faults;
  for (const SlowdownSpec& spec : options.slowdowns) {
    if (!IsWithin(spec, options.workers)) {
      return Invalid(fmt::format("--slowdown {}: the workers are 0 to {}", ToString(spec),
                                 options.workers - 1));
    }
  }
  for (const SlowLink& link : raw.slow_links) {
    if (simulated && link.worker >= options.workers) {
      return Invalid(fmt::format("--slow-link {}=...: --workers {} are 0 to {}", link.worker,
                                 options.workers, options.workers - 1));
    }
  }

  double unit_time = raw.unit_time_s > 0 ? raw.unit_time_s : options.job.emulate.unit_time_s;
  if (unit_time == 0) unit_time = 0.02;
  options.unit.unit_time = FromSeconds(unit_time);
  options.unit.unit_samples = EmulatedUnitSamples(options.job, options.workers);
  options.unit.run_time = FromSeconds(raw.run_time_s);
  options.unit.slowdowns = options.slowdowns;
  options.network.latency = FromSeconds(raw.latency_s);
  options.network.bytes_per_second = static_cast<double>(raw.bandwidth);
  options.network.memory_bytes_per_second = static_cast<double>(raw.memory_bandwidth);
  for (const SlowLink& link : raw.slow_links) {
    options.network.slow_links[link.worker] = link.bytes_per_second;
  }
  options.coordinator_cost = FromSeconds(raw.coordinator_cost_s);
  options.network.message_cost = FromSeconds(raw.message_cost_s);
  if (options.train_samples == 0) options.train_samples = TrainSamples(options.job.data);
  options.knows_costs = raw.costs == "known";
  if (options.knows_costs && options.unit_costs.empty()) {
    return Invalid("--costs known: say with --unit-costs what units cost");
  }
  if (!options.unit_costs.empty()) {
    if (Status taken = TakeUnitCosts(&options); !taken) return taken.error();
  }
  const bool one_seed = table.Given("seed");
  if (!one_seed) options.seed = options.job.job.seed;
  options.first_seed = one_seed ? options.seed : raw.seeds.first;
  options.last_seed = one_seed ? options.seed : raw.seeds.last;
  options.fault_list_given = !options.fault_list.empty();
  return options;
}

}  // namespace lockstep::simulate
