#include "tools/bench/options.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/options.h"
#include "base/program_options.h"

namespace lockstep::bench {
namespace {

constexpr std::uint32_t kMostWorkers = 4096;  // as many as the control protocol takes
constexpr std::uint32_t kMostUnits = 65536;   // likewise, in a round

Error Invalid(std::string message) { return {ErrorCode::kInvalid, std::move(message)}; }

OptionType<Setting> SettingOption() {
  OptionType<Setting> type;
  type.placeholder = std::string("KEY=VALUE");
  type.form = std::string("KEY=VALUE, as policy.name=backup");
  type.parse = [form = type.form](std::string_view text) -> Result<Setting> {
    const std::size_t equals = text.find('=');
    if (equals == std::string_view::npos || equals == 0) return Invalid("expected " + form);
    return Setting{std::string(text.substr(0, equals)), std::string(text.substr(equals + 1))};
  };
  type.format = [](const Setting& value) { return value.key + "=" + value.value; };
  return type;
}

void DeclareJson(OptionTable& table, std::string* json) {
  table.Add("json", json, Text("FILE", "a file, or - for standard output"),
            "Where the rows go as JSON; with - in place of the table");
}

void DeclareSettings(OptionTable& table, std::vector<Setting>* settings) {
  table.AddRepeatable("set", settings, SettingOption(),
                      "A key of the job's config; may be given more than once");
}

void DeclareBytes(OptionTable& table, std::vector<std::uint32_t>* bytes, std::size_t most,
                  const char* help) {
  table.Add("bytes", bytes, Counts(4, 0xfffffffc, most), help);
}

void DeclareDevice(OptionTable& table, std::string* device, const char* help) {
  table.Add("device", device, Text("DEVICE", "cpu, cuda:0, cuda:1 ..."), help);
}

void DeclareCoordinator(OptionTable& table, BenchOptions* all) {
  CoordinatorBenchOptions* options = &all->coordinator;
  table.Group("The coordinator",
              "a real lockstep-coordinator with emulated workers over TCP on loopback");
  table.Add("workers", &options->workers, Counts(1, kMostWorkers, 64),
            "How many workers; a row of the table for each number");
  table.Add("rounds", &options->rounds, Count(1, 1000000),
            "Rounds that are measured: so many with workers that answer at once, then as many in "
            "which they come one after the other");
  table.Add("units", &options->units, Count(1, 1024), "Units of each worker in a round");
  DeclareSettings(table, &options->settings);
  DeclareJson(table, &options->json);
}

void DeclareExchange(OptionTable& table, BenchOptions* all) {
  ExchangeBenchOptions* options = &all->exchange;
  table.Group("The exchange", "real worker processes that sum gradients without computing them");
  table.Add("workers", &options->workers, Count(1, 64),
            "How many worker processes; -n N is the same");
  DeclareBytes(table, &options->bytes, 64, "Size of the gradient; a row of the table for each");
  table.Add("rounds", &options->rounds, Count(1, 1000000), "Rounds that are measured");
  table.Add("transport", &options->transport, Choice({"auto", "ucx", "tcp"}),
            "The job's exchange.transport");
  table.Add("mapping", &options->mapping, Choice({"auto", "off"}), "The job's exchange.mapping");
  DeclareDevice(table, &options->device, "Device in whose memory the gradients of all workers lie");
  table.Add("idle", &options->idle, DurationSeconds(0, 3600),
            "How long each worker sleeps before it seals, as if it computed so long. A thread that "
            "wakes up is slower than one that never slept");
  table.Add("optimizer", &options->optimizer, Choice({"sgd", "momentum", "rmsprop", "adamw"}),
            "The rule that updates the parameters; momentum: sgd with momentum 0.9");
  DeclareSettings(table, &options->settings);
  DeclareJson(table, &options->json);
}

void DeclareLimits(OptionTable& table, BenchOptions* all) {
  LimitsBenchOptions* options = &all->limits;
  table.Group("The limits",
              "the bounds that no exchange between processes of this machine can beat");
  table.Add("workers", &options->workers, Count(2, 64), "How many processes; -n N is the same");
  DeclareBytes(table, &options->bytes, 64, "Size of the gradient; a row of the table for each");
  table.Add("rounds", &options->rounds, Count(1, 1000000), "How often each is measured");
  DeclareJson(table, &options->json);
}

void DeclareTune(OptionTable& table, BenchOptions* all) {
  TuneOptions* options = &all->tune;
  table.Group("Tuning", "which settings of the exchange are quickest between these workers");
  table.Add("workers", &options->workers, Count(2, 64), "How many workers; -n N is the same");
  DeclareBytes(table, &options->bytes, 8,
               "Size of the gradient; with several the mean over them counts");
  table.Add("rounds", &options->rounds, Count(1, 1000000), "Rounds of each job that are measured");
  table.Add("pairs", &options->pairs, Count(1, 100),
            "Jobs for each value of a setting, in turn with as many jobs with the defaults");
  table.Add("transport", &options->transport, Choice({"auto", "ucx", "tcp"}),
            "The job's exchange.transport");
  table.Add("mapping", &options->mapping, Choice({"auto", "off"}),
            "The job's exchange.mapping; off: workers of one host use the transport as well");
  DeclareDevice(table, &options->device,
                "Device in whose memory the gradients of this host's workers lie");
  table.Add("listen", &options->listen, Text("ADDRESS[:PORT]", "an IP address of this host"),
            "Workers are on other hosts too; prints what is to be started there");
  table.Add("secret-file", &options->secret_file, Text("FILE", "a file of at least 16 bytes"),
            "The job's secret, required beyond loopback");
  table.Add("here", &options->here, Count(0, 64),
            "With --listen: how many workers are on this host");
  DeclareSettings(table, &options->settings);
  DeclareJson(table, &options->json);
}

void DeclareTuneWorker(OptionTable& table, BenchOptions* all) {
  TuneWorkerOptions* options = &all->tune_worker;
  table.Group("A worker of a tuning", "on another host: it takes part in one job after the other");
  table.Add("coordinator", &options->coordinator, Text("HOST:PORT", "as tune prints it"),
            "Where the jobs' coordinators listen");
  table.Add("secret-file", &options->secret_file, Text("FILE", "a file of at least 16 bytes"),
            "The same secret");
  table.Add("data-host", &options->data_host, Text("ADDRESS", "an IP address of this host"),
            "Where the other workers reach this one; else as it reaches the coordinator");
  DeclareDevice(table, &options->device, "Device in whose memory the gradients lie");
  table.AddSwitch("once", &options->once, "One job, then it ends");
  table.Add("meeting", &options->meeting, Text("FILE", "a file"),
            "Where workers of one host wait for each other; tune makes it");
}

// -n N and -nN are --workers.
std::vector<std::string> LongNames(std::span<const std::string> arguments) {
  std::vector<std::string> words(arguments.begin(), arguments.end());
  for (std::string& word : words) {
    if (word == "-n") {
      word = "--workers";
    } else if (word.starts_with("-n") && word.size() > 2) {
      word = "--workers=" + word.substr(2);
    }
  }
  return words;
}

Status CheckBytes(const std::vector<std::uint32_t>& sizes) {
  if (sizes.empty()) return Invalid("--bytes: wants at least one number");
  for (const std::uint32_t bytes : sizes) {
    if (bytes % sizeof(float) != 0) {
      return Invalid(fmt::format("--bytes {}: floats have four bytes each", bytes));
    }
  }
  return {};
}

std::string Usage() {
  return fmt::format(
      "lockstep-bench {}: measures parts of Lockstep on this machine\n\n"
      "usage:\n"
      "  lockstep-bench coordinator [--workers N,...] [--rounds R] [--json FILE|-]\n"
      "  lockstep-bench exchange [-n N] [--bytes B,...] [--transport auto|ucx|tcp] "
      "[--mapping auto|off] [--device cpu|cuda:0] [--idle TIME] [--optimizer RULE] "
      "[--json FILE|-]\n"
      "  lockstep-bench limits [-n N] [--bytes B,...] [--rounds R] [--json FILE|-]\n"
      "  lockstep-bench tune [-n N] [--bytes B,...] [--transport auto|ucx|tcp] "
      "[--listen ADDRESS --secret-file FILE [--here N]] [--json FILE|-]\n"
      "  lockstep-bench exchange-worker --coordinator HOST:PORT --secret-file FILE\n\n"
      "lockstep-bench COMMAND --help tells more\n",
      Version());
}

Status CheckCoordinator(BenchOptions* all) {
  const CoordinatorBenchOptions& options = all->coordinator;
  if (options.workers.empty()) return Invalid("--workers: wants at least one number");
  for (const std::uint32_t workers : options.workers) {
    if (std::uint64_t{workers} * options.units > kMostUnits) {
      return Invalid(fmt::format("--workers {} with --units {}: a round has at most {} units",
                                 workers, options.units, kMostUnits));
    }
  }
  return {};
}

Status CheckTune(BenchOptions* all) {
  TuneOptions& options = all->tune;
  if (options.listen.empty()) {
    options.here = options.workers;
  } else if (options.here > options.workers) {
    return Invalid(fmt::format("--here {}: there are {} workers", options.here, options.workers));
  }
  return CheckBytes(options.bytes);
}

struct Command {
  const char* name;
  BenchOptions::Kind kind;
  void (*declare)(OptionTable& table, BenchOptions* all);
  Status (*check)(BenchOptions* all);  // checks the options together
};

const Command kCommands[] = {
    {"coordinator", BenchOptions::Kind::kCoordinator, DeclareCoordinator, CheckCoordinator},
    {"exchange", BenchOptions::Kind::kExchange, DeclareExchange,
     [](BenchOptions* all) { return CheckBytes(all->exchange.bytes); }},
    {"limits", BenchOptions::Kind::kLimits, DeclareLimits,
     [](BenchOptions* all) { return CheckBytes(all->limits.bytes); }},
    {"tune", BenchOptions::Kind::kTune, DeclareTune, CheckTune},
    {kExchangeWorkerCommand, BenchOptions::Kind::kTuneWorker, DeclareTuneWorker,
     [](BenchOptions* all) -> Status {
       if (all->tune_worker.coordinator.empty()) return Invalid("--coordinator is required");
       return {};
     }},
};

Result<BenchOptions> Parse(const Command& command, std::span<const std::string> arguments) {
  BenchOptions all;
  all.kind = command.kind;
  bool help = false;
  OptionTable table;
  command.declare(table, &all);
  table.AddSwitch("help", &help, "Print this and end");
  const std::string defaults = table.Help();
  if (Status read = table.ReadCommandLine(LongNames(arguments)); !read) return read.error();
  if (help) {
    all.kind = BenchOptions::Kind::kPrint;
    all.print = fmt::format("lockstep-bench {}\n\n{}", command.name, defaults);
    return all;
  }
  if (Status fine = command.check(&all); !fine) return fine.error();
  return all;
}

}  // namespace

Result<BenchOptions> ParseBenchOptions(std::span<const std::string> arguments) {
  BenchOptions options;
  if (arguments.empty()) return Invalid("wants a command: coordinator, exchange, limits or tune");
  const std::string& name = arguments.front();
  if (name == "--help") {
    options.print = Usage();
    return options;
  }
  if (name == "--version") {
    options.print = fmt::format("lockstep-bench {}\n", Version());
    return options;
  }
  for (const Command& command : kCommands) {
    if (name == command.name) return Parse(command, arguments.subspan(1));
  }
  return Invalid(fmt::format(
      "'{}' is no command; there are coordinator, exchange, limits, tune and exchange-worker",
      name));
}

}  // namespace lockstep::bench
