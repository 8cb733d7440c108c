#include "tools/bench/tune_worker.h"

#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <string_view>
#include <vector>

#include "tools/bench/exchange_worker.h"

namespace lockstep::bench {
namespace {

// How long it waits for the next job's coordinator.
constexpr Duration kNextJob = std::chrono::seconds(30);
// The most failed jobs in a row before this worker gives up, and the pause before the next: it may
// still reach a coordinator that ends.
constexpr int kFailures = 20;
constexpr int kPauseMs = 250;
constexpr std::uint64_t kMostParameters = 0xfffffffcu / sizeof(float);

Error NoJob(const std::string& text) {
  return {ErrorCode::kInvalid,
          fmt::format("data.path = '{}' is not what lockstep-bench tune says", text)};
}

bool IsTuned(std::string_view name) {
  return std::ranges::find(kTunedEnvironment, name) != std::end(kTunedEnvironment);
}

bool IsValue(std::string_view text) {
  return !text.empty() && text.size() <= 16 && std::ranges::all_of(text, [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
  });
}

Status RunOnce(const TuneWorkerOptions& options) {
  ExchangeWorkerOptions worker;
  worker.coordinator = options.coordinator;
  worker.secret_file = options.secret_file;
  worker.data_host = options.data_host;
  worker.device = options.device;
  worker.meeting = options.meeting;
  worker.connect_timeout = kNextJob;
  worker.describe = [](const JobConfig& config, ExchangeWorkerOptions& said) -> Status {
    const auto job = ParseTunedJob(config.data.path);
    if (!job) return job.error();
    said.parameters = job->parameters;
    said.samples = job->samples;
    // UCX reads them when the transports are opened, and nothing else is opened now.
    for (const auto& [name, value] : job->environment) {
      ::setenv(name.c_str(), value.c_str(), /*overwrite=*/1);
    }
    return {};
  };
  return RunExchangeWorker(worker);
}

std::vector<std::string> WordsOf(const TuneWorkerOptions& options) {
  std::vector<std::string> words = {kExchangeWorkerCommand, "--once",   "--coordinator",
                                    options.coordinator,    "--device", options.device};
  const auto add = [&](const char* name, const std::string& value) {
    if (!value.empty()) words.insert(words.end(), {name, value});
  };
  add("--secret-file", options.secret_file);
  add("--data-host", options.data_host);
  return words;
}

// False: a signal came.
bool Pause(Signals& signals) {
  ::pollfd wait{signals.fd(), POLLIN, 0};
  ::poll(&wait, 1, kPauseMs);
  return !signals.Came();
}

}  // namespace

std::string ToText(const TunedJob& job) {
  std::string text = fmt::format("parameters={},samples={}", job.parameters, job.samples);
  for (const auto& [name, value] : job.environment) text += fmt::format(",{}={}", name, value);
  return text;
}

Result<TunedJob> ParseTunedJob(const std::string& text) {
  TunedJob job;
  for (std::string_view rest = text; !rest.empty();) {
    const std::string_view word = rest.substr(0, rest.find(','));
    rest.remove_prefix(std::min(rest.size(), word.size() + 1));
    const std::size_t equals = word.find('=');
    if (equals == std::string_view::npos) return NoJob(text);
    const std::string_view name = word.substr(0, equals);
    const std::string_view value = word.substr(equals + 1);
    if (name == "parameters" || name == "samples") {
      std::uint64_t& number = name == "samples" ? job.samples : job.parameters;
      const auto [end, failed] = std::from_chars(value.data(), value.data() + value.size(), number);
      if (failed != std::errc() || end != value.data() + value.size()) return NoJob(text);
    } else if (IsTuned(name) && IsValue(value)) {
      job.environment.emplace(name, value);
    } else {
      return NoJob(text);
    }
  }
  if (job.parameters < 1 || job.parameters > kMostParameters || job.samples < 1) return NoJob(text);
  return job;
}

Status RunTuneWorker(const TuneWorkerOptions& options, Signals& signals) {
  if (options.once) return RunOnce(options);
  auto folder = TempFolder::Make();
  if (!folder) return folder.error();
  std::fprintf(
      stderr, "takes part in the jobs of %s, until it is gone for %lld s\n",
      options.coordinator.c_str(),
      static_cast<long long>(std::chrono::duration_cast<std::chrono::seconds>(kNextJob).count()));
  int jobs = 0;
  for (int failures = 0;;) {
    auto child = Child::Start("lockstep-bench", WordsOf(options), folder->path() / "worker.log");
    if (!child) return child.error();
    while (!child->Status()) {
      ::pollfd waits[] = {{signals.fd(), POLLIN, 0}, {child->fd(), POLLIN, 0}};
      ::poll(waits, 2, -1);
      if (signals.Came()) return Interrupted();
    }
    if (*child->Status() == 0) {
      ++jobs;
      failures = 0;
      continue;
    }
    const bool gone = *child->Status() == kStatusNoCoordinator;
    if (gone && jobs > 0) {
      std::printf("the coordinator at %s is gone, after %d jobs\n", options.coordinator.c_str(),
                  jobs);
      return {};
    }
    if (gone || ++failures == kFailures) return Error{ErrorCode::kClosed, child->LastWords()};
    if (!Pause(signals)) return Interrupted();
  }
}

}  // namespace lockstep::bench
