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

struct Common {
  std::string* json = nullptr;
  std::vector<Setting>* settings = nullptr;
  bool help = false;
};

void DeclareCommon(OptionTable& table, Common* common) {
  table.AddRepeatable("set", common->settings, SettingOption(),
                      "A key of the job's config; may be given more than once");
  table.Add("json", common->json, Text("FILE", "a file, or - for standard output"),
            "Where the rows go as JSON; with - in place of the table");
  table.AddSwitch("help", &common->help, "Print this and end");
}

void DeclareCoordinator(OptionTable& table, CoordinatorBenchOptions* options, Common* common) {
  table.Group("The coordinator",
              "a real lockstep-coordinator with emulated workers over TCP on loopback");
  table.Add("workers", &options->workers, Counts(1, kMostWorkers, 64),
            "How many workers; a row of the table for each number");
  table.Add("rounds", &options->rounds, Count(1, 1000000),
            "Rounds that are measured: so many with workers that answer at once, then as many in "
            "which they come one after the other");
  table.Add("units", &options->units, Count(1, 1024), "Units of each worker in a round");
  DeclareCommon(table, common);
}

void DeclareExchange(OptionTable& table, ExchangeBenchOptions* options, Common* common) {
  table.Group("The exchange", "real worker processes that sum gradients without computing them");
  table.Add("workers", &options->workers, Count(2, 64),
            "How many worker processes; -n N is the same");
  table.Add("bytes", &options->bytes, Counts(4, 0xfffffffc, 64),
            "Size of the gradient; a row of the table for each");
  table.Add("rounds", &options->rounds, Count(1, 1000000), "Rounds that are measured");
  table.Add("transport", &options->transport, Choice({"auto", "ucx", "tcp"}),
            "The job's exchange.transport");
  table.Add("mapping", &options->mapping, Choice({"auto", "off"}), "The job's exchange.mapping");
  table.Add("device", &options->device, Text("DEVICE", "cpu, cuda:0, cuda:1 ..."),
            "Whose memory the gradients lie in, of all workers");
  table.Add("optimizer", &options->optimizer, Choice({"sgd", "momentum", "rmsprop", "adamw"}),
            "The rule that updates the parameters; momentum: sgd with momentum 0.9");
  DeclareCommon(table, common);
}

void DeclareLimits(OptionTable& table, LimitsBenchOptions* options, Common* common) {
  table.Group("The limits",
              "what no exchange between processes of this machine can be faster than");
  table.Add("workers", &options->workers, Count(2, 64), "How many processes; -n N is the same");
  table.Add("bytes", &options->bytes, Counts(4, 0xfffffffc, 64),
            "Size of the gradient; a row of the table for each");
  table.Add("rounds", &options->rounds, Count(1, 1000000), "How often each is measured");
  table.Add("json", common->json, Text("FILE", "a file, or - for standard output"),
            "Where the rows go as JSON; with - in place of the table");
  table.AddSwitch("help", &common->help, "Print this and end");
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
      "  lockstep-bench coordinator [--workers N,...] [--rounds R] [--json FILE|-]\n"
      "  lockstep-bench exchange [-n N] [--bytes B,...] [--transport auto|ucx|tcp] "
      "[--mapping auto|off] [--device cpu|cuda:0] [--optimizer RULE] [--json FILE|-]\n"
      "  lockstep-bench limits [-n N] [--bytes B,...] [--rounds R] [--json FILE|-]\n\n"
      "lockstep-bench COMMAND --help tells more\n",
      Version());
}

Result<BenchOptions> ParseCoordinator(std::span<const std::string> arguments) {
  BenchOptions all;
  all.kind = BenchOptions::Kind::kCoordinator;
  CoordinatorBenchOptions& options = all.coordinator;
  Common common{&options.json, &options.settings};
  OptionTable table;
  DeclareCoordinator(table, &options, &common);
  const std::string defaults = table.Help();
  if (Status read = table.ReadCommandLine(arguments); !read) return read.error();
  if (common.help) {
    all.kind = BenchOptions::Kind::kPrint;
    all.print = "lockstep-bench coordinator\n\n" + defaults;
    return all;
  }
  if (options.workers.empty()) return Invalid("--workers: wants at least one number");
  for (const std::uint32_t workers : options.workers) {
    if (std::uint64_t{workers} * options.units > kMostUnits) {
      return Invalid(fmt::format("--workers {} with --units {}: a round has at most {} units",
                                 workers, options.units, kMostUnits));
    }
  }
  return all;
}

Result<BenchOptions> ParseExchange(std::span<const std::string> arguments) {
  BenchOptions all;
  all.kind = BenchOptions::Kind::kExchange;
  ExchangeBenchOptions& options = all.exchange;
  Common common{&options.json, &options.settings};
  OptionTable table;
  DeclareExchange(table, &options, &common);
  const std::string defaults = table.Help();
  if (Status read = table.ReadCommandLine(LongNames(arguments)); !read) return read.error();
  if (common.help) {
    all.kind = BenchOptions::Kind::kPrint;
    all.print = "lockstep-bench exchange\n\n" + defaults;
    return all;
  }
  if (Status fine = CheckBytes(options.bytes); !fine) return fine.error();
  return all;
}

Result<BenchOptions> ParseLimits(std::span<const std::string> arguments) {
  BenchOptions all;
  all.kind = BenchOptions::Kind::kLimits;
  Common common{&all.limits.json, nullptr};
  OptionTable table;
  DeclareLimits(table, &all.limits, &common);
  const std::string defaults = table.Help();
  if (Status read = table.ReadCommandLine(LongNames(arguments)); !read) return read.error();
  if (common.help) {
    all.kind = BenchOptions::Kind::kPrint;
    all.print = "lockstep-bench limits\n\n" + defaults;
    return all;
  }
  if (Status fine = CheckBytes(all.limits.bytes); !fine) return fine.error();
  return all;
}

}  // namespace

Result<BenchOptions> ParseBenchOptions(std::span<const std::string> arguments) {
  BenchOptions options;
  if (arguments.empty()) return Invalid("wants a command: coordinator, exchange or limits");
  const std::string& command = arguments.front();
  if (command == "--help") {
    options.print = Usage();
    return options;
  }
  if (command == "--version") {
    options.print = fmt::format("lockstep-bench {}\n", Version());
    return options;
  }
  if (command == "coordinator") return ParseCoordinator(arguments.subspan(1));
  if (command == "exchange") return ParseExchange(arguments.subspan(1));
  if (command == "limits") return ParseLimits(arguments.subspan(1));
  return Invalid(
      fmt::format("'{}' is no command; there are coordinator, exchange and limits", command));
}

}  // namespace lockstep::bench
