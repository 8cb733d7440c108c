#include "tools/simulate/fault_runs.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <filesystem>
#include <map>
#include <sstream>
#include <system_error>
#include <utility>

#include "base/check.h"
#include "base/random.h"
#include "base/sometimes.h"
#include "base/time.h"
#include "tools/simulate/apart.h"
#include "tools/simulate/job.h"

namespace lockstep::simulate {
namespace {

volatile std::sig_atomic_t interrupted = 0;

// The text in which a job's process returns its outcome: the failure and its details, or "ok" and
// the branches that it has reached (base/sometimes.h), a line each.
std::string Report(const FaultOutcome& outcome) {
  if (outcome.failure.empty()) {
    std::string text = fmt::format("ok {} {} {} {} {}", outcome.all_lost ? 1 : 0, outcome.rounds,
                                   outcome.events, outcome.applied, outcome.caught_up);
    for (const auto& [name, count] : SometimesBranch::All()) {
      if (count > 0) text += fmt::format("\n{} {}", count, name);
    }
    return text;
  }
  return outcome.failure + "\n" + outcome.details;
}

struct Totals {
  std::uint64_t jobs = 0, lost = 0, rounds = 0, events = 0, applied = 0, caught_up = 0;
  struct Branch {
    std::uint64_t times = 0;
    std::uint64_t jobs = 0;  // in which it was reached
  };
  std::map<std::string, Branch> branches;

  Totals() {
    for (const auto& [name, count] : SometimesBranch::All()) branches[name];
  }

  void Add(const std::string& report) {
    unsigned long long values[5] = {};
    std::sscanf(report.c_str(), "ok %llu %llu %llu %llu %llu", &values[0], &values[1], &values[2],
                &values[3], &values[4]);
    ++jobs;
    lost += values[0];
    rounds += values[1];
    events += values[2];
    applied += values[3];
    caught_up += values[4];
    std::istringstream lines(report);
    std::string line;
    std::getline(lines, line);
    while (std::getline(lines, line)) {
      const std::size_t space = line.find(' ');
      if (space == std::string::npos) continue;
      Branch& branch = branches[line.substr(space + 1)];
      branch.times += std::strtoull(line.c_str(), nullptr, 10);
      ++branch.jobs;
    }
  }
  void PrintBranches() const {
    fmt::print("\n| branch | jobs | times |\n|---|---:|---:|\n");
    for (const auto& [name, branch] : branches) {
      fmt::print("| {} | {} | {} |\n", name, branch.jobs, branch.times);
    }
  }
  void Print() const {
    fmt::print(
        "{} jobs: {} rounds, {} events, {} updates compared, {} catch-ups; {} jobs ended "
        "because nobody was left\n",
        jobs, rounds, events, applied, caught_up, lost);
  }
};

bool Fails(const Apart::Ended& ended) { return !ended.ok || !ended.text.starts_with("ok "); }

// The first line has the error.
std::string_view Headline(const Apart::Ended& ended) {
  return std::string_view(ended.text).substr(0, ended.text.find('\n'));
}

std::string Command(const SimulateOptions& options, std::uint64_t seed,
                    const std::vector<Fault>* faults) {
  std::string command = fmt::format("lockstep-simulate --faults --seed {}", seed);
  if (options.workers > 0) command += fmt::format(" --workers {}", options.workers);
  if (options.job.optimizer.replicas != OptimizerSection::kAll) {
    command += fmt::format(" --optimizer.replicas={}", options.job.optimizer.replicas);
  }
  if (options.job.exchange.algorithm != ExchangeSection().algorithm) {
    command += fmt::format(" --exchange.algorithm={}", options.job.exchange.algorithm);
  }
  if (options.own_parameters) command += " --own-parameters";
  if (options.job.audit.share > 0) {
    command += fmt::format(" --audit.share={}", options.job.audit.share);
  }
  if (options.policy_given) {
    const PolicySection& policy = options.job.policy;
    command += fmt::format(" --policy.name={}", policy.name);
    if (policy.backup_workers == PolicySection::kAuto) {
      command += " --backup.workers=auto";
    } else if (policy.backup_workers != PolicySection().backup_workers) {
      command += fmt::format(" --backup.workers={}", policy.backup_workers);
    }
  }
  if (faults != nullptr) {
    for (const Fault& fault : *faults) command += " --fault " + ToString(fault);
  }
  return command;
}

void Shrink(const SimulateOptions& options, std::uint64_t seed) {
  FaultJob job = FaultJobOf(options, seed);
  std::uint64_t tries = 0;
  const auto run = [&job](const std::vector<Fault>& faults) {
    FaultJob fewer = job;
    fewer.faults = faults;
    return Apart([&fewer] { return Report(RunFaultJob(fewer)); }).Wait();
  };
  const std::size_t all = job.faults.size();
  job.faults = ShrinkFaults(job.faults, [&](const std::vector<Fault>& faults) {
    ++tries;
    return interrupted == 0 && Fails(run(faults));  // so it ends soon
  });
  const Apart::Ended ended = run(job.faults);
  fmt::print("\n{} of {} faults are enough ({} tries):\n", job.faults.size(), all, tries);
  for (const Fault& fault : job.faults) fmt::print("  {}\n", ToString(fault));
  fmt::print("{}\n", Command(options, seed, &job.faults));
  fmt::print("then: {}\n\nthe last events:\n", Headline(ended));
  // It runs in a process of its own: the last step may end it.
  constexpr std::size_t kLines = 60;
  const Apart::Ended told = Apart([&job] {
                              std::deque<std::string> lines;
                              RunFaultJob(job, [&lines](const std::string& line) {
                                // It also goes to standard error: the last words of a process that
                                // a check ends.
                                lines.push_back(line);
                                if (lines.size() > kLines) lines.pop_front();
                              });
                              std::string text;
                              for (const std::string& line : lines) text += line + "\n";
                              return text;
                            }).Wait();
  fmt::print("{}", told.text);
}

void PrintFailure(const SimulateOptions& options, std::uint64_t seed, const Apart::Ended& ended) {
  fmt::print("seed {} fails: {}\n  {}\n", seed, ended.text,
             Command(options, seed, options.fault_list_given ? &options.fault_list : nullptr));
  std::fflush(stdout);
  if (options.shrink) Shrink(options, seed);
}

PolicySection PolicyOf(const SimulateOptions& options) {
  PolicySection section;
  section.name = options.job.policy.name;
  section.backup_workers = options.job.policy.backup_workers;
  return section;
}

}  // namespace

FaultJob FaultJobOf(const SimulateOptions& options, std::uint64_t seed) {
  FaultDraw draw;
  draw.seed = seed;
  if (options.workers > 0) draw.workers = options.workers;
  if (options.policy_given) draw.policy = PolicyOf(options);
  // Seeds have every kind of fault alone, and all together.
  draw.mix.crashes = seed % 4 != 1;
  draw.mix.stops = seed % 4 != 2;
  draw.mix.links = seed % 4 != 3;
  draw.mix.coordinator = seed % 3 == 0;
  draw.mix.until = std::chrono::seconds(2 + seed % 7);
  draw.mix.mean_pause = std::chrono::milliseconds(100 + 150 * (seed % 5));
  // Kinds of faults that were added later occur in all seeds but each fifth, which stays unchanged.
  if (seed % 5 != 0) {
    const std::uint64_t bits = Mix64(seed);
    draw.more.control_links = (bits & 1) != 0;
    draw.more.one_way = (bits & 2) != 0;
    draw.more.hangs = (bits & 4) != 0;
    draw.more.clocks = (bits & 8) != 0;
    draw.more.disk = (bits & 0x70) == 0;
    draw.more.resume = (bits & 0x380) == 0;
    draw.more.endless = (bits & 0x1c00) == 0;
    draw.whole_copies = (bits & 0x6000) == 0;
    const std::array<std::uint32_t, 4> kept = {1, 11, 103, 512};
    if ((bits & 0x38000) == 0) draw.kept = kept[bits >> 18 & 3];
    draw.poisoned = (bits & 0x700000) == 0;
    draw.absences = (bits & 0x1800000) == 0;
    if ((bits & 0xe000000) == 0) draw.rank = static_cast<std::uint32_t>(1 + (bits >> 28 & 3));
    draw.stalls = (bits >> 30 & 3) == 0;
    draw.takeovers = (bits >> 32 & 3) == 0;
    if ((bits >> 34 & 3) == 0) draw.audit_share = 0.25;
    draw.files = (bits >> 36 & 7) == 0;
  }
  if (options.job.optimizer.replicas != OptimizerSection::kAll) {
    draw.replicas = options.job.optimizer.replicas;
  }
  draw.algorithm = options.job.exchange.algorithm;
  if (options.job.audit.share > 0) draw.audit_share = options.job.audit.share;
  draw.own_parameters = options.own_parameters;
  draw.more.until = draw.mix.until;
  draw.more.mean_pause = 2 * draw.mix.mean_pause;
  draw.more_epochs = 12;
  FaultJob job = DrawFaultJob(draw);
  if (options.fault_list_given) job.faults = options.fault_list;
  return job;
}

std::vector<Fault> ShrinkFaults(std::vector<Fault> faults,
                                const std::function<bool(const std::vector<Fault>&)>& fails) {
  std::size_t piece = std::max<std::size_t>(faults.size() / 2, 1);
  while (!faults.empty()) {
    bool any = false;
    for (std::size_t at = 0; at < faults.size();) {
      std::vector<Fault> fewer(faults.begin(), faults.begin() + static_cast<std::ptrdiff_t>(at));
      const std::size_t end = std::min(at + piece, faults.size());
      fewer.insert(fewer.end(), faults.begin() + static_cast<std::ptrdiff_t>(end), faults.end());
      if (fails(fewer)) {
        faults = std::move(fewer);
        any = true;
      } else {
        at = end;
      }
    }
    if (piece == 1 && !any) break;
    piece = std::max<std::size_t>(piece / 2, 1);
  }
  return faults;
}

namespace {

// Where jobs keep their files. One that a check ends removes nothing.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string pattern =
        (std::filesystem::temp_directory_path() / "lockstep-simulate-XXXXXX").string();
    LOCKSTEP_CHECK(::mkdtemp(pattern.data()) != nullptr, "{}: {}", pattern, std::strerror(errno));
    path_ = pattern;
    ::setenv("TMPDIR", path_.c_str(), /*replace=*/1);
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }

 private:
  std::filesystem::path path_;
};

// While it lives, SIGINT and SIGTERM set `interrupted`.
class NotedSignals {
 public:
  NotedSignals() {
    interrupted = 0;
    for (const int signal : kSignals) {
      before_[signal] = std::signal(signal, [](int) { interrupted = 1; });
    }
  }
  ~NotedSignals() {
    for (const auto& [signal, handler] : before_) std::signal(signal, handler);
  }

 private:
  static constexpr std::array kSignals = {SIGINT, SIGTERM};
  std::map<int, void (*)(int)> before_;
};

class SeedsProgress {
 public:
  explicit SeedsProgress(std::uint64_t seeds)
      : seeds_(seeds), pause_(std::chrono::seconds(::isatty(STDERR_FILENO) != 0 ? 5 : 60)) {}
  void Say(std::uint64_t passed) {
    const Time now = MonotonicNow();
    if (now < next_) return;
    next_ = now + pause_;
    fmt::print(stderr, "lockstep-simulate: {} of {} seeds have passed, {:.1f} a second\n", passed,
               seeds_, static_cast<double>(passed) / Seconds(now - begun_));
  }

 private:
  const std::uint64_t seeds_;
  const Duration pause_;
  const Time begun_ = MonotonicNow();
  Time next_ = begun_ + pause_;
};

}  // namespace

Status CheckFaultJobs(const SimulateOptions& options) {
  // Settings that suit the largest number of workers suit fewer: a seed draws its own number of
  // them.
  SimulateOptions largest = options;
  if (options.workers == 0) largest.workers = kMostDrawnWorkers;
  // Without one, each seed draws a policy that fits.
  largest.job.policy = options.policy_given ? PolicyOf(options) : PolicySection{};
  return CheckStart(largest);
}

SeedsEnd RunFaultSeeds(const SimulateOptions& options) {
  const TemporaryFolder folder;
  const NotedSignals signals;
  if (options.history) {
    for (std::uint64_t seed = options.first_seed; seed <= options.last_seed; ++seed) {
      if (interrupted != 0) return SeedsEnd::kInterrupted;
      const FaultOutcome outcome =
          RunFaultJob(FaultJobOf(options, seed), [](const std::string& line) {
            fmt::print("{}\n", line);
            std::fflush(stdout);  // the next step may be the last
          });
      fmt::print("seed {}: {}\n", seed, Report(outcome));
      if (!outcome.failure.empty()) return SeedsEnd::kOneFailed;
    }
    return SeedsEnd::kAllPassed;
  }
  Totals totals;
  std::deque<std::pair<std::uint64_t, Apart>> running;
  SeedsProgress progress(options.last_seed - options.first_seed + 1);
  bool failed = false;
  for (std::uint64_t seed = options.first_seed; !failed && interrupted == 0;) {
    while (running.size() < options.jobs && seed <= options.last_seed) {
      running.emplace_back(
          seed, Apart([&options, seed] { return Report(RunFaultJob(FaultJobOf(options, seed))); }));
      ++seed;
    }
    if (running.empty()) break;
    const Apart::Ended ended = running.front().second.Wait();
    if (interrupted != 0 && !ended.ok) {
      // The signal has ended it, too.
    } else if (Fails(ended)) {
      PrintFailure(options, running.front().first, ended);
      failed = true;
    } else {
      totals.Add(ended.text);
      progress.Say(totals.jobs);
    }
    running.pop_front();
  }
  if (interrupted != 0) {
    for (auto& [seed, apart] : running) apart.Kill();
  }
  totals.Print();
  if (options.branches) totals.PrintBranches();
  if (interrupted != 0) return SeedsEnd::kInterrupted;
  return failed ? SeedsEnd::kOneFailed : SeedsEnd::kAllPassed;
}

}  // namespace lockstep::simulate
