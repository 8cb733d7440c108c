#include "base/program_options.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <optional>
#include <system_error>

#include "base/ini.h"
#include "base/slowdown_trace.h"

namespace lockstep {
namespace {

Error Invalid(std::string message) { return {ErrorCode::kInvalid, std::move(message)}; }

OptionType<std::string> DeviceOption() {
  OptionType<std::string> type = Text("DEVICE", "cpu, cuda or cuda:N");
  type.parse = [form = type.form](std::string_view text) -> Result<std::string> {
    const bool numbered = text.starts_with("cuda:") && text.size() > 5 && text.size() <= 8 &&
                          text.find_first_not_of("0123456789", 5) == std::string_view::npos;
    if (text != "cpu" && text != "cuda" && !numbered) return Invalid("expected " + form);
    return std::string(text);
  };
  return type;
}

// For an option that may be absent.
template <class T>
OptionType<std::optional<T>> Maybe(OptionType<T> type) {
  OptionType<std::optional<T>> maybe;
  maybe.placeholder = type.placeholder;
  maybe.form = type.form;
  maybe.parse = [parse = type.parse](std::string_view text) -> Result<std::optional<T>> {
    Result<T> value = parse(text);
    if (!value) return value.error();
    return std::optional<T>(*std::move(value));
  };
  maybe.format = [format = type.format](const std::optional<T>& value) {
    return value ? format(*value) : std::string();
  };
  return maybe;
}

// Options that every program has.
struct Common {
  bool help = false;
  bool version = false;
};

void DeclareCommon(OptionTable& table, std::string* secret_file, std::string* log_level,
                   Common* common) {
  table.Add("secret-file", secret_file, Text("FILE", "a file of at least 16 bytes"),
            "The job's secret, the same file for all; required beyond loopback");
  table.Add("log-level", log_level, Choice({"trace", "debug", "info", "warn", "error"}),
            "Least level of the lines that are logged to standard error");
  table.AddSwitch("version", &common->version, "Print the version and end");
  table.AddSwitch("help", &common->help, "Print this and end");
}

bool AsksForText(std::span<const std::string> arguments, std::string_view option) {
  return std::ranges::find(arguments, option) != arguments.end();
}

// The text of --help or --version, also when the rest of the command line is not in order.
std::string TextAskedFor(std::span<const std::string> arguments, const OptionTable& table,
                         const std::string& program, const std::string& usage) {
  if (AsksForText(arguments, "--help")) {
    return fmt::format("{} {}: {}\n\n{}", program, Version(), usage, table.Help());
  }
  if (AsksForText(arguments, "--version")) return fmt::format("{} {}\n", program, Version());
  return "";
}

// One that a standby does not take: the code that it loads is for its own command line to name.
bool IsJobOption(const std::string& argument) {
  const std::string key = argument.substr(0, argument.find('='));
  return key.starts_with("--") && key.find('.') != std::string::npos && key != "--policy.plugin";
}

// --min-workers and --max-workers, which stand for a setting each.
struct Size {
  const char* option;
  const char* key;
  std::optional<std::uint32_t> given;
  std::uint32_t JobSection::*to;
};

Status TakeSize(const Size& size, std::span<const std::string> arguments, JobConfig* job) {
  if (!size.given) return {};
  const bool twice = std::ranges::any_of(arguments, [&](const std::string& argument) {
    return argument.substr(0, argument.find('=')) == fmt::format("--{}", size.key);
  });
  if (twice) {
    return Invalid(
        fmt::format("--{}: it is the same as --{}: give one of them", size.option, size.key));
  }
  job->job.*size.to = *size.given;
  return {};
}

// All that it needs to know of the job comes from the coordinator that it follows.
Status CheckStandby(const CoordinatorOptions& options, const OptionTable& table,
                    std::span<const std::string> arguments) {
  if (!options.standby) {
    return table.Given("follow") ? Invalid("--follow: is for a --standby") : Status();
  }
  if (!table.Given("follow")) return Invalid("--follow: required, as --follow 10.0.0.1:7070");
  if (options.follow.port == 0) {
    return Invalid("--follow: port 0 is for who listens; say the one that it got");
  }
  if (options.run_dir.empty()) return Invalid("--run-dir: required, as --run-dir runs/a");
  for (const char* other : {"workers", "min-workers", "max-workers", "config", "resume", "reattach",
                            "config-from-workers"}) {
    if (table.Given(other)) {
      return Invalid(fmt::format(
          "--{}: not with --standby, which does as the coordinator that it follows", other));
    }
  }
  const auto job = std::ranges::find_if(arguments, IsJobOption);
  if (job == arguments.end()) return {};
  return Invalid(
      fmt::format("{}: not with --standby, which has the settings of the job from the "
                  "coordinator that it follows",
                  job->substr(0, job->find('='))));
}

Status CheckRequired(const CoordinatorOptions& options) {
  if (options.workers == 0) return Invalid("--workers: required, as --workers 4");
  if (options.run_dir.empty()) return Invalid("--run-dir: required, as --run-dir runs/a");
  return {};
}

bool IsRunDirectory(const std::string& path) {
  std::error_code none;
  return std::filesystem::is_directory(std::filesystem::path(path) / "checkpoints", none);
}

// A coordinator has begun to write there.
bool IsBegun(const std::string& path) {
  std::error_code none;
  return std::filesystem::exists(std::filesystem::path(path) / "journal", none);
}

Status CheckCoordinator(const CoordinatorOptions& options) {
  const JobSection& job = options.job.job;
  if (job.max_workers != 0 && job.max_workers < options.workers) {
    return Invalid(fmt::format("job.max_workers = {} is less than --workers {}", job.max_workers,
                               options.workers));
  }
  const std::string workers = job.max_workers > options.workers
                                  ? fmt::format("job.max_workers = {}", job.max_workers)
                                  : fmt::format("--workers {}", options.workers);
  if (job.min_workers > options.workers) {
    return Invalid(fmt::format("job.min_workers = {} is more than --workers {}", job.min_workers,
                               options.workers));
  }
  if (job.spares >= options.workers) {
    return Invalid(fmt::format("job.spares = {} with --workers {}: at least one has to compute",
                               job.spares, options.workers));
  }
  const std::uint32_t units = job.units;
  if (units != 0 && units < options.slots()) {
    return Invalid(
        fmt::format("job.units = {} is less than {}: each needs at least one", units, workers));
  }
  const std::uint64_t steps = std::uint64_t{options.job.policy.local_steps} * options.workers;
  if (options.job.policy.local() &&
      (options.job.job.global_batch < steps || (units != 0 && units < steps))) {
    return Invalid(fmt::format(
        "local.steps = {} with --workers {} needs at least {} samples (job.global_batch = {}) and "
        "units (job.units = {}) in a round: a local step has one at least",
        options.job.policy.local_steps, options.workers, steps, options.job.job.global_batch,
        units));
  }
  if (job.global_batch < options.slots()) {
    return Invalid(
        fmt::format("job.global_batch = {} is less than {}: each needs at least one "
                    "sample",
                    job.global_batch, workers));
  }
  return {};
}

}  // namespace

std::string Version() { return LOCKSTEP_VERSION; }

OptionType<HostPort> HostPortOption() {
  OptionType<HostPort> type;
  type.placeholder = std::string("HOST:PORT");
  type.form = std::string("HOST:PORT, IPv6 as [::1]:7070");
  type.parse = ParseHostPort;
  type.format = [](const HostPort& value) {
    return value.host.empty() ? std::string() : ToString(value);
  };
  return type;
}

namespace {

OptionType<LeaseAddress> LeaseOption() {
  OptionType<LeaseAddress> type;
  type.placeholder = std::string("LEASE");
  type.form = std::string("etcd://HOST:2379/NAME");
  type.parse = ParseLeaseAddress;
  type.format = [](const LeaseAddress& value) { return ToString(value); };
  return type;
}

}  // namespace

Result<LeaseAddress> ParseLeaseAddress(std::string_view text) {
  constexpr std::string_view kScheme = "etcd://";
  constexpr std::size_t kMostName = 256;
  const Error wrong = Invalid("expected etcd://HOST:2379/NAME");
  if (!text.starts_with(kScheme)) return wrong;
  text.remove_prefix(kScheme.size());
  const std::size_t slash = text.find('/');
  if (slash == std::string_view::npos) return wrong;
  const auto etcd = ParseHostPort(text.substr(0, slash));
  const std::string name(text.substr(slash + 1));
  if (!etcd || etcd->port == 0 || name.empty() || name.size() > kMostName || !IsPrintable(name)) {
    return wrong;
  }
  return LeaseAddress{*etcd, name};
}

std::string ToString(const LeaseAddress& lease) {
  return fmt::format("etcd://{}/{}", ToString(lease.etcd), lease.name);
}

OptionType<SlowdownSpec> SlowdownOption() {
  OptionType<SlowdownSpec> type;
  type.placeholder = std::string("SPEC");
  type.form = std::string(
      "key=value,... as worker=2,factor=4,from=10s,for=5s; docs/reference/slowdowns.md has the "
      "patterns");
  type.parse = [](std::string_view text) -> Result<SlowdownSpec> {
    Result<SlowdownSpec> spec = ParseSlowdownSpec(text);
    if (!spec) return spec;
    if (Status loaded = LoadTrace(&*spec); !loaded) return loaded.error();
    return spec;
  };
  type.format = [](const SlowdownSpec& value) { return ToString(value); };
  return type;
}

Result<CoordinatorOptions> ParseCoordinatorOptions(std::span<const std::string> arguments,
                                                   const std::string* settings) {
  CoordinatorOptions options;
  Common common;
  OptionTable table;
  table.Group("Coordinator", "");
  table.Add("listen", &options.listen, HostPortOption(),
            "Address for the workers; port 0: one that is free");
  OptionType<std::uint32_t> workers = Count(1, kMaxWorkers);
  workers.format = [](const std::uint32_t& value) {
    return value == 0 ? std::string() : std::to_string(value);  // it has no default
  };
  table.Add("workers", &options.workers, workers, "Workers that the job has; required");
  std::array<Size, 2> sizes = {
      Size{"min-workers", "job.min_workers", std::nullopt, &JobSection::min_workers},
      Size{"max-workers", "job.max_workers", std::nullopt, &JobSection::max_workers}};
  for (Size& size : sizes) {
    table.Add(size.option, &size.given, Maybe(Count(1, kMaxWorkers)),
              fmt::format("The same as --{}", size.key));
  }
  table.Add("config", &options.config_file, Text("FILE", "an INI file"),
            "The job's config; without it all defaults hold");
  table.Add("run-dir", &options.run_dir, Text("DIR", "a folder"),
            "Where records, results and checkpoints are written; required");
  table.Add("http", &options.http, Maybe(HostPortOption()),
            "Address of the status page and of tools/ctl; without it there is none");
  table.AddSwitch("resume", &options.resume,
                  "Continue from the newest checkpoint of the run directory");
  table.AddSwitch("reattach", &options.reattach,
                  "Continue the job of the run directory after its coordinator is gone, with the "
                  "parameters that its workers hold. If no worker holds them, continue from the "
                  "newest checkpoint; if no job was begun, start one");
  table.AddSwitch("standby", &options.standby,
                  "Follow the coordinator of a job, and take over from it when told to (SIGUSR1, "
                  "tools/ctl takeover)");
  table.Add("follow", &options.follow, HostPortOption(),
            "Of a standby: where the coordinator listens; required for it");
  table.Add("lease", &options.lease, Maybe(LeaseOption()),
            "A key in etcd that decides which coordinator leads, the same for a coordinator and "
            "its standby: the standby takes over when the other one has lost the lease");
  table.AddSwitch("config-from-workers", &options.config_from_workers,
                  "Settings that are missing from --config and the command line come from the "
                  "workers' training program. For programs with a Session of their own");
  std::vector<SlowdownSpec> checked_slowdowns;
  table.AddRepeatable("check-slowdown", &checked_slowdowns, SlowdownOption(),
                      "Check a slow-down for workers and end, with status 2 if it has a mistake; "
                      "may be given more than once");
  DeclareCommon(table, &options.secret_file, &options.log_level, &common);
  DeclareJobOptions(table, &options.job);

  options.print = TextAskedFor(arguments, table, "lockstep-coordinator",
                               "runs a job's rounds. Options of the job, with a dot, may also "
                               "stand in the config file");
  if (!options.print.empty()) return options;
  if (Status read = table.ReadCommandLine(arguments); !read) return read.error();
  for (const SlowdownSpec& spec : checked_slowdowns) options.print += ToString(spec) + "\n";
  if (!options.print.empty()) return options;
  if (Status checked = CheckStandby(options, table, arguments); !checked) return checked.error();
  if (options.standby) return options;
  if (Status checked = CheckRequired(options); !checked) return checked.error();
  if (options.reattach && IsBegun(options.run_dir)) options.resume = true;
  std::string file = options.config_file;
  if (file.empty() && options.resume) file = options.run_dir + "/config.ini";
  if (!file.empty()) {
    const Status read = table.ReadFile(file);
    if (!read && options.config_file.empty() && !IsRunDirectory(options.run_dir)) {
      return Error{ErrorCode::kNotFound,
                   fmt::format("--resume: {} is no run directory", options.run_dir)};
    }
    if (!read) return read.error();
  }
  // The settings that the training program gave when the job began stand there, and nowhere else.
  if (options.config_from_workers && options.resume && !options.config_file.empty()) {
    if (Status read = table.ReadFile(options.run_dir + "/config.ini"); !read) return read.error();
  }
  if (options.config_from_workers && !options.resume) {
    if (settings == nullptr) {
      if (table.Given("job.join_timeout")) {
        options.settings_timeout_s = options.job.job.join_timeout_s;
      }
      return options;
    }
    const std::string plugin = options.job.policy.plugin;
    if (Status read = table.ReadText(*settings, "the workers' program"); !read) return read.error();
    // Otherwise the worker that joins first would run code of its choice here.
    if (options.job.policy.plugin != plugin) {
      return Invalid(
          "policy.plugin: the coordinator loads only a plug-in that its own config or command "
          "line names, not one that the workers' program names");
    }
  }
  // An exception in a script ends one worker, and the others go on. A run directory holds all
  // settings.
  if (options.config_from_workers && !options.resume && !table.Given("job.min_workers")) {
    options.job.job.min_workers = 1;
  }
  for (const Size& size : sizes) {
    if (Status taken = TakeSize(size, arguments, &options.job); !taken) return taken.error();
  }
  if (Status checked = CheckJobConfig(options.job); !checked) return checked.error();
  if (Status checked = CheckCoordinator(options); !checked) return checked.error();
  return options;
}

Result<WorkerOptions> ParseWorkerOptions(std::span<const std::string> arguments) {
  WorkerOptions options;
  Common common;
  OptionTable table;
  table.Group("Worker", "");
  table.Add("coordinator", &options.coordinator, HostPortOption(),
            "Where the coordinator listens; required");
  std::uint32_t id = 0;
  table.Add("id", &id, Count(0, kMaxWorkers - 1),
            "Slot that this worker asks for; if it is not free, or without --id, any free one");
  table.Add("device", &options.device, DeviceOption(), "Device that computes the gradients");
  table.AddSwitch("require-gpudirect", &options.require_gpudirect,
                  "End with status 2 if GPUDirect RDMA does not reach a worker on another host");
  table.AddRepeatable("slowdown", &options.slowdowns, SlowdownOption(),
                      "Slow this worker down, for experiments; may be given more than once");
  table.Add("data-host", &options.data_host, Text("ADDRESS", "an IP address"),
            "IP address of this host for the other workers; without it the one by which it reaches "
            "the coordinator");
  table.Add(
      "connect-timeout", &options.connect_timeout_s, DurationSeconds(0.1, 86400),
      "How long to try to reach the coordinator, and to wait for its first answer (at most 10s)");
  DeclareCommon(table, &options.secret_file, &options.log_level, &common);
  // They are checked here, with the same declarations as everywhere, and applied when the job's
  // config is known.
  JobConfig job;
  OptionTable job_table;
  DeclareJobOptions(job_table, &job);
  table.Group("Overrides", "options of the job that differ by host");
  std::vector<std::string> values(WorkerKeys().size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    OptionType<std::string> type =
        Text("VALUE", "as in the config file; without it the job's value holds");
    type.parse = [&job_table, key = std::string(WorkerKeys()[i])](
                     std::string_view text) -> Result<std::string> {
      const std::string value(text);
      if (Status set = job_table.Set(key, value); !set) return set.error();
      return value;
    };
    table.Add(std::string(WorkerKeys()[i]), &values[i], type, "Overrules the job's value");
  }

  options.print = TextAskedFor(arguments, table, "lockstep-worker",
                               "computes gradients for a job and exchanges them with its peers");
  if (!options.print.empty()) return options;
  if (Status read = table.ReadCommandLine(arguments); !read) return read.error();
  if (!table.Given("coordinator")) {
    return Invalid("--coordinator: required, as --coordinator 127.0.0.1:7070");
  }
  if (options.coordinator.port == 0) {
    return Invalid("--coordinator: port 0 is for who listens; say the one that it got");
  }
  if (options.require_gpudirect && options.device == "cpu") {
    return Invalid(
        "--require-gpudirect: makes no sense with --device cpu, whose gradients are in no GPU's "
        "memory");
  }
  if (table.Given("id")) options.wanted = WorkerId(id);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const std::string key(WorkerKeys()[i]);
    if (table.Given(key)) options.overrides.push_back({key, values[i]});
  }
  return options;
}

}  // namespace lockstep
