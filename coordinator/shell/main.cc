// lockstep-coordinator: runs a job's rounds.

#include <fmt/format.h>
#include <openssl/rand.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "base/free_memory.h"
#include "base/job_options.h"
#include "base/log.h"
#include "base/program_options.h"
#include "coordinator/journal/journal.h"
#include "coordinator/journal/rescue.h"
#include "coordinator/shell/policy_loader.h"
#include "coordinator/shell/read_for_resume.h"
#include "coordinator/shell/server.h"
#include "coordinator/shell/standby.h"
#include "policies/registry.h"
#include "transport/open_files.h"

namespace lockstep::coordinator {
namespace {

constexpr int kStatusFailed = 1;
constexpr int kStatusUsage = 2;
constexpr int kStatusInterrupted = 130;

// Files of the run directory that are there while the job is.
constexpr const char* kHttpAddress = "http.address";
constexpr const char* kJobId = "job.id";
constexpr const char* kSecretPath = "secret.path";
// The launcher has said so that no other coordinator follows.
constexpr const char* kGone = "coordinator.gone";

int Fail(const Error& error) {
  std::fprintf(stderr, "lockstep-coordinator: %s\n", error.message.c_str());
  return kStatusUsage;
}

// Files that strangers cannot take: sockets, log, records and lock (some 20), a checkpoint while it
// is written (up to 5), and at a resume one for each stream (16 at a time).
constexpr std::uint64_t kOwnFiles = 40;
// Three kinds of connections share the rest: connections without a proof, connections that have
// proven the secret and are silent, and requests for the status page.
constexpr std::uint64_t kKindsOfPlaces = 3;
constexpr std::uint64_t kFewestPlaces = 8;  // of each kind
constexpr std::uint64_t kMorePlaces = 1024;

// A worker may come back while its old connection is not given up yet.
constexpr std::uint64_t FilesWithoutPlaces(std::uint32_t workers) {
  return std::uint64_t{workers} * 2 + kOwnFiles;
}

// The more files are allowed, the more places. An error says what a job of so many workers needs
// and what is allowed.
Result<OpenPlaces> AllowOpenFiles(std::uint32_t workers) {
  const std::uint64_t own = FilesWithoutPlaces(workers);
  const std::uint64_t needed = own + kKindsOfPlaces * kFewestPlaces;
  const auto allowed = transport::AllowOpenFiles(needed + kMorePlaces);
  if (!allowed) return allowed.error();
  if (*allowed < needed) {
    return Error{ErrorCode::kUnavailable,
                 fmt::format("a job of {} workers needs {} open files and {} are allowed: raise "
                             "the hard limit (ulimit -Hn)",
                             workers, needed, *allowed)};
  }
  const std::uint64_t each = (*allowed - own) / kKindsOfPlaces;
  OpenPlaces places;
  places.newcomers = std::min<std::uint64_t>(places.newcomers, each);
  places.requests = std::min<std::uint64_t>(places.requests, each);
  return places;
}

std::vector<std::byte> RandomBytes(std::size_t count) {
  std::vector<std::byte> bytes(count);
  LOCKSTEP_CHECK(
      RAND_bytes(reinterpret_cast<unsigned char*>(bytes.data()), static_cast<int>(count)) == 1,
      "the system gives no random numbers");
  return bytes;
}

std::string Hex(const std::vector<std::byte>& bytes) {
  std::string text;
  for (std::byte b : bytes) text += fmt::format("{:02x}", static_cast<unsigned>(b));
  return text;
}

// A new term with each start of a coordinator over this run directory.
Result<Term> NextTerm(const RunDirectory& directory) {
  auto text = directory.ReadFile("term");
  if (!text) return Term(1);
  std::uint32_t term = 0;
  const char* end = text->data() + text->size();
  const auto [rest, error] = std::from_chars(text->data(), end, term);
  if (error != std::errc() || std::string_view(rest, end) != "\n" || term + 1 == 0) {
    return Error{ErrorCode::kInvalid,
                 fmt::format("{}: not a number", (directory.path() / "term").string())};
  }
  return Term(term + 1);
}

// The job's config as its workers know it: they follow no coordinator that says another one. A
// release that knows more keys would write it otherwise. `text`: as this one writes it.
std::string TextForWorkers(const RunDirectory& directory, const std::string& text) {
  const auto saved = directory.ReadFile("config.ini");
  if (!saved) return text;
  const auto config = ParseJobConfig(*saved, "config.ini", {});
  return config && ToIni(*config) == text ? *saved : text;
}

// Tools on this machine find the job by http.address. The job's id tells them whether it still
// answers there, since a killed process removes nothing.
Status TellTools(RunDirectory& directory, const std::string& http, const std::string& job_id) {
  if (Status written = directory.WriteFile(kJobId, job_id + "\n"); !written.ok()) return written;
  return directory.WriteFile(kHttpAddress, http + "\n");
}

void Remove(const RunDirectory& directory, std::initializer_list<const char*> names) {
  std::error_code ignored;
  for (const char* name : names) std::filesystem::remove(directory.path() / name, ignored);
}

int Report(const ActionRunner& runner) {
  const JobResult& result = runner.result();
  std::string line = fmt::format("{}: {} rounds, {} epochs in {:.1f} s", Name(result.outcome),
                                 result.totals.rounds, result.totals.epochs, result.wall_seconds);
  if (result.train_loss) line += fmt::format(", loss {:.4f}", *result.train_loss);
  if (result.test_accuracy)
    line += fmt::format(", test accuracy {:.2f} %", *result.test_accuracy * 100);
  line += fmt::format(", policy {}, {} samples requeued, {} dropped", result.policy,
                      result.totals.samples_requeued, result.totals.samples_dropped);
  if (result.emulation.any()) line += ", times are emulated";
  if (!result.reason.empty()) line += fmt::format(" ({})", result.reason);
  spdlog::info("{}", line);
  for (const StragglerRecord& s : result.stragglers) {
    const double limit = 0.05 * result.wall_seconds;
    if (s.held_up_seconds <= limit && s.would_have_held_up_seconds <= limit) continue;
    spdlog::info("worker {} blocked the others for {:.1f} s ({}){}", s.worker, s.held_up_seconds,
                 s.kind,
                 s.would_have_held_up_seconds > limit
                     ? fmt::format(", waiting for it would have cost {:.1f} s more",
                                   s.would_have_held_up_seconds)
                     : std::string());
  }
  if (result.saved_seconds > 0.05 * result.wall_seconds) {
    spdlog::info("the policy {} has saved {:.1f} s of waiting", result.policy,
                 result.saved_seconds);
  }
  if (!runner.io_error().empty()) return kStatusFailed;
  switch (result.outcome) {
    case JobOutcome::kCompleted:
      return 0;
    case JobOutcome::kInterrupted:
      return kStatusInterrupted;
    case JobOutcome::kFailed:
    case JobOutcome::kHandedOver:
      break;
  }
  return kStatusFailed;
}

// The arguments of the coordinator that goes on with the job at the same addresses.
std::vector<std::string> ArgumentsOfNext(const std::vector<std::string>& arguments,
                                         std::uint32_t workers, const std::string& listen,
                                         const std::optional<std::string>& http) {
  std::vector<std::string> next;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::string name = arguments[i].substr(0, arguments[i].find('='));
    if (name == "--resume" || name == "--reattach" || name == "--standby") continue;
    if (name != "--listen" && name != "--http" && name != "--follow" && name != "--workers") {
      next.push_back(arguments[i]);
    } else if (name == arguments[i]) {
      ++i;  // its value
    }
  }
  next.push_back("--listen=" + listen);
  next.push_back(fmt::format("--workers={}", workers));  // a standby knows it from the job
  if (http) next.push_back("--http=" + *http);
  next.push_back("--reattach");
  return next;
}

// Leaves in `next` what the coordinator that goes on with the job is to be started with.
int RunOne(const std::vector<std::string>& arguments, std::vector<std::string>* next) {
  OutliveFailedWrites();
  auto parsed = ParseCoordinatorOptions(arguments);
  if (!parsed) return Fail(parsed.error());
  CoordinatorOptions& options = *parsed;
  if (!options.print.empty()) {
    std::fputs(options.print.c_str(), stdout);
    return 0;
  }
  InitLogging("coordinator", options.log_level);

  std::optional<Succession> succession;
  if (options.standby) {
    auto standby = Standby::Open(options, Hex(RandomBytes(8)));
    if (!standby) return Fail(standby.error());
    succession = (*standby)->Run();
    if (!succession) return (*standby)->status();
    options.listen = succession->listen;
    options.workers = succession->workers;
    options.job = succession->config;
    options.resume = options.reattach = true;
  }
  StartParameters parameters;
  parameters.journal_followed = succession.has_value();
  parameters.workers = options.slots();
  parameters.begin_workers = options.workers;
  parameters.plugin = LoadPolicy;
  parameters.job_key = RandomBytes(32);
  parameters.job_id = Hex(RandomBytes(8));
  parameters.started = MonotonicNow();
  const auto take_config = [&] {
    parameters.config = options.job;
    parameters.config_text = ToIni(options.job);
    return Coordinator::Make(parameters);
  };
  const bool from_workers = options.config_from_workers && !options.resume;
  // Errors of the config or the address are reported before anything is written.
  if (!from_workers) {
    if (auto trial = take_config(); !trial) return Fail(trial.error());
  } else if (options.job.policy.plugin.empty()) {
    // Checks only that there is such a policy. The rest of it may be the first worker's to say, so
    // that is looked at with many workers and the defaults.
    PolicySection named;
    named.name = options.job.policy.name;
    if (auto policy = policies::MakePolicy(named, kMaxWorkers, nullptr); !policy) {
      return Fail(policy.error());
    }
  }
  const auto places = AllowOpenFiles(options.slots());
  if (!places) return Fail(places.error());
  Result<std::unique_ptr<Server>> server = std::unique_ptr<Server>();
  if (!succession) server = Server::Open(options, parameters.job_id, *places);
  if (!server) return Fail(server.error());
  // A resume may read and cut files for minutes. Until then nobody is to connect: a worker waits
  // only seconds for the first answer, but long for a listener.
  if (options.resume) server->reset();

  auto directory = RunDirectory::Open(options.run_dir, options.resume);
  if (!directory) return Fail(directory.error());
  if (from_workers) {
    if (Status written =
            (*directory)->WriteFile("coordinator.address", (*server)->address() + "\n");
        !written.ok()) {
      return Fail(written.error());
    }
    spdlog::info("listening on {} for {} workers; the first one configures the job",
                 (*server)->address(), options.workers);
    auto settings = (*server)->AwaitSettings(FromSeconds(options.settings_timeout_s));
    if (!settings) {
      Fail(settings.error());
      return settings.error().code == ErrorCode::kClosed ? kStatusInterrupted : kStatusFailed;
    }
    const auto refuse = [&](const Error& error) {
      (*server)->Refuse(error.message);
      return Fail(error);
    };
    auto complete = ParseCoordinatorOptions(arguments, &*settings);
    if (!complete) return refuse(complete.error());
    options = *std::move(complete);
    parameters.program_settings = *settings;
    if (auto trial = take_config(); !trial) return refuse(trial.error());
    if (Status adopted = (*server)->Adopt(options); !adopted) return refuse(adopted.error());
  }
  CheckpointStore checkpoints((*directory)->checkpoints(), options.job.checkpoint.keep);
  // All that is there is read and found right before anything is changed.
  std::optional<CheckpointStore::Loaded> loaded;
  RunDirectory::Kept kept;
  JournalFile::Contents journal;
  if (options.resume) {
    const Rescue rescue = AdoptRescue(**directory, options.job.checkpoint.keep);
    if (!rescue.line.empty()) {
      spdlog::log(rescue.used ? spdlog::level::info : spdlog::level::warn, "{}", rescue.line);
    }
    auto resumed = ReadForResume(**directory, checkpoints, options.job.job, options.reattach,
                                 succession ? &succession->journal : nullptr);
    if (!resumed) return Fail(resumed.error());
    if (!resumed->warning.empty()) spdlog::warn("{}", resumed->warning);
    loaded = std::move(resumed->checkpoint);
    kept = std::move(resumed->records);
    journal = std::move(resumed->journal);
    if (loaded) parameters.resume = loaded->state;
    parameters.journal = journal.entries;
    if (options.reattach && !journal.entries.empty()) {
      parameters.config_text = TextForWorkers(**directory, parameters.config_text);
    }
    if (!journal.entries.empty() && !journal.entries.back().policy.empty()) {
      parameters.config.policy.name = journal.entries.back().policy;
    }
    parameters.train_loss = kept.train_loss;
    parameters.metrics = kept.metrics;
    parameters.evaluated = kept.evaluated;
    // Times go on where the kept rounds end.
    parameters.started = MonotonicNow() - FromSeconds(kept.latest);
  }
  std::unique_ptr<LeaseHold> lease;
  const std::string holder = fmt::format("{} (pid {})", ToString(options.listen), ::getpid());
  if (options.lease && succession) {
    lease = std::move(succession->lease);
  } else if (options.lease) {
    auto taken =
        AwaitLease(*options.lease, holder, LeaseTtl(FromSeconds(options.job.liveness.timeout_s)));
    if (!taken) {
      Fail(taken.error());
      return taken.error().code == ErrorCode::kClosed ? kStatusInterrupted : kStatusFailed;
    }
    lease = std::make_unique<LeaseHold>(*options.lease, holder, *std::move(taken));
    spdlog::info("this coordinator holds the lease {}", ToString(*options.lease));
  }
  auto term = NextTerm(**directory);
  if (!term) return Fail(term.error());
  if (succession) *term = std::max(*term, succession->journal.term.Next());
  parameters.term = *term;
  if (journal.run_id.empty()) journal.run_id = Hex(RandomBytes(8));
  journal.term = *term;
  parameters.run_id = journal.run_id;
  parameters.run_dir = std::filesystem::absolute(options.run_dir).string();
  const std::string config_text = parameters.config_text;
  const std::string job_id = parameters.job_id;
  Server::Lead lead;
  lead.run_id = journal.run_id;
  lead.term = *term;
  lead.job.text = JobText(options.workers, config_text, journal.run_id);
  lead.job.records = (*directory)->path();
  lead.job.timeout = FromSeconds(options.job.liveness.timeout_s);
  if (succession) lead.taken_over_from = options.follow;
  lead.lease = std::move(lease);
  if (options.lease) lead.lease_address = *options.lease;
  lead.lease_holder = holder;
  auto core = Coordinator::Make(std::move(parameters));
  if (!core) return Fail(core.error());
  const bool goes_on = loaded || !journal.entries.empty();
  if (options.resume) {
    if (goes_on) {
      if (Status cut = (*directory)->CutBack(kept); !cut.ok()) return Fail(cut.error());
    }
    kept.evaluations = {};
    server = Server::Open(options, job_id, *places);
    if (!server) return Fail(server.error());
  }
  if (Status written = (*directory)->WriteFile("term", fmt::format("{}\n", *term)); !written.ok()) {
    return Fail(written.error());
  }
  if (!goes_on) {
    // Before the journal, with which --reattach goes on from here: it reads the settings there.
    Status written = (*directory)->WriteFile("config.ini", config_text);
    if (!written.ok()) return Fail(written.error());
  }
  auto noted = JournalFile::Begin((*directory)->path(), journal, options.job.journal.sync);
  if (!noted) return Fail(noted.error());
  std::optional<ActionRunner::Resume> resume;
  if (goes_on) {
    const Totals totals =
        journal.entries.empty() ? loaded->state.totals : journal.entries.back().state.totals;
    resume = {std::move(loaded),       totals,        config_text, kept.train_loss,
              std::move(kept.metrics), kept.evaluated};
  }
  for (const std::string& line : (*core)->Bounds()) spdlog::debug("bound: {}", line);

  if (!from_workers) {
    if (Status written =
            (*directory)->WriteFile("coordinator.address", (*server)->address() + "\n");
        !written.ok()) {
      return Fail(written.error());
    }
    spdlog::info("listening on {} for {} workers, run directory {}", (*server)->address(),
                 options.workers, options.run_dir);
  }
  if (options.secret_file.empty()) {
    spdlog::warn(
        "no --secret-file: every user of this machine can join the job as a worker, read its "
        "gradients and falsify them{}",
        options.http ? ", and change it over --http" : "");
  }
  // The file's name, not what it holds: by which tools on this machine find it.
  Remove(**directory, {kHttpAddress, kJobId, kSecretPath, kGone});
  if (!options.secret_file.empty()) {
    const std::string name = std::filesystem::absolute(options.secret_file).string();
    if (Status written = (*directory)->WriteFile(kSecretPath, name + "\n"); !written.ok())
      return Fail(written.error());
  }
  if (const auto http = (*server)->http_address()) {
    spdlog::info("status page: http://{}/", *http);
    if (Status written = TellTools(**directory, *http, job_id); !written.ok())
      return Fail(written.error());
  }
  const bool secret = !options.secret_file.empty();
  std::vector<std::string> if_handed_over =
      ArgumentsOfNext(arguments, options.workers, (*server)->address(), (*server)->http_address());
  spdlog::info(
      "open to others: control {}, for {}{}", (*server)->address(),
      secret ? "workers that prove the secret" : "anybody on this host",
      (*server)->http_address()
          ? fmt::format("; status {}, for anybody who reaches it{}", *(*server)->http_address(),
                        secret ? ", changes only with the secret" : "")
          : "");
  lead.job.journal = [&noted] { return (*noted)->Text(); };
  auto runner = (*server)->Run(std::move(lead), [&](ActionRunner::Ports ports) {
    return std::make_unique<ActionRunner>(std::move(*core), **directory, checkpoints, **noted,
                                          std::move(resume), std::move(ports));
  });
  if ((*directory)->Held().ok()) Remove(**directory, {kHttpAddress, kJobId});
  if (!(*server)->abandoned().empty()) {
    spdlog::error("{}", (*server)->abandoned());
    return kStatusFailed;
  }
  if (const JobResult& result = runner->result(); result.outcome == JobOutcome::kHandedOver) {
    spdlog::warn("{}: this coordinator starts again as that one (--reattach)", result.reason);
    *next = std::move(if_handed_over);
    return kStatusFailed;
  }
  return Report(*runner);
}

int Main(std::vector<std::string> arguments) {
  for (;;) {
    std::vector<std::string> next;
    const int status = RunOne(arguments, &next);
    if (next.empty()) return status;
    arguments = std::move(next);
  }
}

}  // namespace
}  // namespace lockstep::coordinator

int main(int argc, char** argv) {
  lockstep::EndWhenOutOfResources("lockstep-coordinator");
  return lockstep::coordinator::Main(std::vector<std::string>(argv + 1, argv + argc));
}
