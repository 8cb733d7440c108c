#include "coordinator/shell/standby.h"

#include <fmt/format.h>
#include <unistd.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/address.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <csignal>
#include <filesystem>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>
#include <variant>

#include "base/ini.h"
#include "base/job_options.h"
#include "base/log.h"
#include "base/log_limit.h"
#include "coordinator/http/status_page.h"
#include "coordinator/job/context.h"
#include "coordinator/record/run_directory.h"
#include "transport/control/channel.h"

namespace lockstep::coordinator {
namespace {

namespace asio = boost::asio;
namespace control = transport::control;
namespace fs = std::filesystem;
using Json = nlohmann::json;
using Part = msg::Followed::Part;

constexpr int kStatusFailed = 1;
constexpr int kStatusInterrupted = 130;

// Between two tries to follow.
constexpr auto kPause = std::chrono::milliseconds(500);
// This process may have been stopped when it was told to take over: it reads what has arrived, and
// then decides.
constexpr auto kSettle = std::chrono::milliseconds(10);
// How long one try waits for somebody who listens.
constexpr Duration kConnectTimeout = std::chrono::hours(1);
// The longest entry of a journal; of the largest job it has some megabytes.
constexpr std::size_t kMostText = 64u << 20;

constexpr const char* kJournal = JournalFile::kName;
// That a standby writes in a folder of its own, beside config.ini, term and lock.
constexpr std::initializer_list<const char*> kRecords = {"rounds.jsonl", "evaluations.jsonl",
                                                         "summary.json", "timeline.json", kJournal};

struct FollowedJob {
  std::uint32_t workers = 0;
  std::string config_text;
  std::string run_id;
  JobConfig config;
};

Error Invalid(std::string why) { return {ErrorCode::kInvalid, std::move(why)}; }

Result<FollowedJob> ParseJobText(const std::string& text, const std::string& plugin) {
  const Json json = Json::parse(text, nullptr, false);
  const auto text_of = [&](const char* key) {
    const auto found = json.find(key);
    return found != json.end() && found->is_string() ? found->get<std::string>() : std::string();
  };
  if (!json.is_object()) return Invalid("it is no JSON object");
  FollowedJob job;
  const auto workers = json.find("workers");
  if (workers == json.end() || !workers->is_number_unsigned() || *workers < 1u ||
      *workers > kMaxWorkers) {
    return Invalid("it has no number of workers");
  }
  job.workers = workers->get<std::uint32_t>();
  job.config_text = text_of("config");
  job.run_id = text_of("run_id");
  if (job.run_id.empty()) return Invalid("it has no run_id");
  auto config = ParseJobConfig(job.config_text, "the job's config", {});
  if (!config) return config.error();
  job.config = *std::move(config);
  // Workers compare it with the one that they have.
  if (ToIni(job.config) != job.config_text) {
    return Invalid("its settings are those of another version of this program");
  }
  // Otherwise whoever is followed would run code of its choice here.
  if (job.config.policy.plugin != plugin) {
    return Invalid(
        fmt::format("its policy.plugin is '{}': a standby loads only what its own "
                    "command line names with --policy.plugin",
                    job.config.policy.plugin));
  }
  return job;
}

bool HasCheckpoints(const fs::path& folder) {
  std::error_code none;
  return fs::exists(folder / "checkpoints", none) && !fs::is_empty(folder / "checkpoints", none);
}

class StandbyImpl final : public Standby {
 public:
  StandbyImpl(const CoordinatorOptions& options, std::string job_id)
      : options_(options), job_id_(std::move(job_id)) {}

  Status Start() {
    control::ControlServer::Options server;
    server.listen = options_.listen;
    if (!options_.secret_file.empty()) {
      auto read = control::ReadSecretFile(options_.secret_file);
      if (!read) return read.error();
      if (!read->warning.empty()) spdlog::warn("{}", read->warning);
      secret_ = read->secret;
      server.secret = secret_;
    }
    control::ControlServer::Handler handler;
    handler.on_worker = [](std::unique_ptr<control::WorkerChannel> channel, const msg::Hello&) {
      channel->Send(msg::ToWorker(msg::Refuse{"this is a standby, which does not lead yet", true}));
    };
    handler.on_rejected = [this](const std::string& remote, const Error& error) {
      if (rejections_.Allow(MonotonicNow()))
        spdlog::warn("connection from {} came to nothing: {}", remote, error.message);
    };
    auto listening = control::ControlServer::Listen(io_, std::move(server), std::move(handler));
    if (!listening) return listening.error();
    listener_ = *std::move(listening);
    return OpenPage();
  }

  std::optional<Succession> Run() override {
    spdlog::info("standby: listening on {}, following {}", ToString(listener_->address()),
                 ToString(options_.follow));
    if (page_) spdlog::info("status: http://{}/status", ToString(page_->address()));
    WatchSignals();
    Connect();
    io_.run();
    channel_.reset();
    return std::move(succession_);
  }

  int status() const override { return status_; }

 private:
  enum class State {
    kSeeking,   // it has nothing to take over with
    kCopying,   // it is being sent the records and the journal
    kComplete,  // it has all that any worker can have heard of
    kCutOff,    // it was complete when the connection ended, and has no word of what followed
    kGivenUp,   // the job went on without it
  };

  static const char* Name(State state) {
    switch (state) {
      case State::kSeeking:
        return "seeking";
      case State::kCopying:
        return "copying";
      case State::kComplete:
        return "complete";
      case State::kCutOff:
        return "cut off";
      case State::kGivenUp:
        break;
    }
    return "given up";
  }
  bool complete() const { return state_ == State::kComplete || state_ == State::kCutOff; }
  bool own_folder() const { return directory_ != nullptr; }

  Status OpenPage() {
    if (!options_.http) return {};
    HttpRequests::Handlers handlers;
    handlers.status = [this] { return StatusText(); };
    handlers.take_over = [this] { return TakeOver("tools/ctl"); };
    std::optional<HttpProof> proof;
    if (secret_) proof.emplace(secret_->Derive("http"), job_id_);
    auto page = StatusPage::Listen(io_, *options_.http, std::move(proof), std::move(handlers));
    if (!page) return page.error();
    page_ = *std::move(page);
    return {};
  }

  std::string StatusText() const {
    Json standby = {{"state", Name(state_)}, {"follows", ToString(options_.follow)}};
    if (complete()) {
      const JournalFile::Contents& journal = reader_->contents();
      standby["term"] = journal.term.value;
      if (!journal.entries.empty()) {
        standby["next_round"] = journal.entries.back().state.next_round.value;
      }
    }
    return Json{{"standby", standby}}.dump() + "\n";
  }

  void WatchSignals() {
    signals_.async_wait([this](const boost::system::error_code& error, int signal) {
      if (error) return;
      if (signal == SIGUSR1) {
        settle_.expires_after(kSettle);
        settle_.async_wait([this](const boost::system::error_code& cancelled) {
          if (cancelled) return;
          const auto told = TakeOver("SIGUSR1");
          if (!told) spdlog::error("{}", told.error().message);
        });
        return WatchSignals();
      }
      spdlog::info("interrupted ({})", signal == SIGINT ? "SIGINT" : "SIGTERM");
      End(kStatusInterrupted);
    });
  }

  void End(int status) {
    status_ = status;
    ended_ = true;  // what has been received with the cause may still be handed over
    io_.stop();
  }
  void Fail(const std::string& why) {
    spdlog::error("{}", why);
    End(kStatusFailed);
  }

  // --- following

  void Connect() {
    control::ControlClient::Options options;
    options.coordinator = options_.follow;
    options.secret = secret_;
    options.connect_timeout = kConnectTimeout;
    client_ = std::make_unique<control::ControlClient>(
        io_, std::move(options), [this](Result<std::unique_ptr<control::CoordinatorChannel>> made) {
          if (made) return Follow(*std::move(made));
          const ErrorCode code = made.error().code;
          const bool wrong = code == ErrorCode::kRefused || code == ErrorCode::kInvalid;
          if (wrong && state_ == State::kSeeking) return Fail(made.error().message);
          ConnectLater();
        });
  }

  void ConnectLater() {
    pause_.expires_after(kPause);
    pause_.async_wait([this](const boost::system::error_code& error) {
      if (!error) Connect();
    });
  }

  // The active coordinator is there, so a folder that nobody has locked is not its run directory.
  void Follow(std::unique_ptr<control::CoordinatorChannel> channel) {
    if (Status taken = TakeFolder(); !taken) return Fail(taken.error().message);
    channel_ = std::move(channel);
    last_ = 0;
    pending_.clear();
    channel_->Start({.on_message = [this](const msg::ToWorker& message) { OnMessage(message); },
                     .on_closed = [this](const Error& error) { OnGone(error.message); },
                     .on_drained = nullptr});
    char name[256] = {};
    msg::Hello hello;
    hello.version = Version();
    hello.host = ::gethostname(name, sizeof name - 1) == 0 ? name : "unknown";
    hello.pid = static_cast<std::uint64_t>(::getpid());
    hello.standby = msg::StandbyHello{.address = Address(), .own_folder = own_folder()};
    channel_->Send(msg::FromWorker(std::move(hello)));
  }

  // Where workers reach it: the address by which it reaches the other one, if it listens at all.
  std::string Address() const {
    HostPort address = listener_->address();
    boost::system::error_code none;
    if (asio::ip::make_address(address.host, none).is_unspecified()) {
      address.host = channel_->local_host();
    }
    return ToString(address);
  }

  Status TakeFolder() {
    if (own_folder()) return {};
    std::error_code error;
    fs::create_directories(fs::path(options_.run_dir) / "checkpoints", error);
    if (error) return Invalid(fmt::format("{}: {}", options_.run_dir, error.message()));
    auto opened = RunDirectory::Open(options_.run_dir, true);
    if (!opened && opened.error().code != ErrorCode::kRefused) return opened.error();
    if (opened) directory_ = *std::move(opened);
    return {};
  }

  void OnGone(const std::string& why) {
    channel_.reset();
    if (state_ == State::kComplete) {
      state_ = State::kCutOff;
      spdlog::warn(
          "the coordinator at {} is lost: {}; this standby is complete up to round {}, and takes "
          "over when {}",
          ToString(options_.follow), why, NextRound(),
          options_.lease ? "it gets the lease" : "it is told to (SIGUSR1, tools/ctl takeover)");
    } else if (state_ == State::kCopying) {
      state_ = State::kGivenUp;
    }
    ConnectLater();
  }

  std::string NextRound() const {
    const auto& entries = reader_->contents().entries;
    return entries.empty() ? "0" : std::to_string(entries.back().state.next_round.value);
  }

  void OnMessage(const msg::ToWorker& message) {
    if (ended_) return;
    if (const auto* followed = std::get_if<msg::Followed>(&message)) {
      if (Status taken = Take(*followed); !taken) return Fail(taken.error().message);
      if (channel_) channel_->Send(msg::FromWorker(msg::Noted{.sequence = last_}));
      return;
    }
    const auto* refuse = std::get_if<msg::Refuse>(&message);
    const std::string reason = refuse != nullptr ? refuse->reason : "it is no coordinator";
    if (refuse == nullptr || !refuse->try_again) {
      return Fail(
          fmt::format("{}: it does not take this standby: {}", ToString(options_.follow), reason));
    }
    if (std::exchange(refusal_, reason) != reason) {
      spdlog::info("{}: it does not take this standby yet: {}", ToString(options_.follow), reason);
    }
  }

  Status Take(const msg::Followed& followed) {
    const bool begins = pending_.empty();
    if (followed.sequence != last_ + 1 || (!begins && followed.part != pending_part_) ||
        pending_.size() + followed.text.size() > kMostText ||
        ((last_ == 0) != (followed.part == Part::kJob))) {
      return Broken("messages that do not follow each other");
    }
    last_ = followed.sequence;
    pending_part_ = followed.part;
    pending_ += followed.text;
    if (!followed.last) return {};
    return TakeWhole(followed.part, std::exchange(pending_, {}));
  }

  Error Broken(const std::string& what) const {
    return Invalid(fmt::format("{}: it sends {}", ToString(options_.follow), what));
  }

  Status TakeWhole(Part part, std::string text) {
    switch (part) {
      case Part::kJob:
        return TakeJob(text);
      case Part::kRounds:
      case Part::kEvaluations:
        if (!own_folder() || !text.ends_with('\n')) return Broken("records that are none");
        text.pop_back();
        return part == Part::kRounds ? directory_->AppendRound(text)
                                     : directory_->AppendEvaluation(text);
      case Part::kJournal:
        return TakeJournal(text);
      case Part::kEntry:
        return TakeEntry(std::move(text));
      case Part::kWithout:
        state_ = State::kGivenUp;
        keeper_.reset();
        spdlog::warn("the coordinator at {} goes on without this standby: {}; it follows anew",
                     ToString(options_.follow), Printable(text));
        return ForgetJournal();
      case Part::kEnded:
        if (own_folder()) {
          if (Status written = directory_->WriteFile("summary.json", text); !written) {
            return written;
          }
        }
        spdlog::info("the job has ended; so does this standby");
        End(0);
        return {};
    }
    return Broken("a part that is none");
  }

  Status TakeJob(const std::string& text) {
    refusal_.clear();
    auto job = ParseJobText(text, options_.job.policy.plugin);
    if (!job) {
      return Invalid(fmt::format("{}: the job cannot be followed: {}", ToString(options_.follow),
                                 job.error().message));
    }
    if (job_ && job_->run_id != job->run_id) {
      return Invalid(fmt::format("{}: another job is run there now", ToString(options_.follow)));
    }
    job_ = *std::move(job);
    channel_->SetTimeout(FromSeconds(job_->config.liveness.timeout_s));
    state_ = State::kCopying;
    keeper_.reset();
    reader_ = std::make_unique<JournalReader>(JournalFile::kKept);
    return own_folder() ? Empty() : IsTheirs();
  }

  // A folder of its own begins empty.
  Status Empty() {
    const fs::path folder = directory_->path();
    const auto refused = [&](const char* what) {
      return Error{ErrorCode::kRefused,
                   fmt::format("{}: holds {}; choose another --run-dir for the standby",
                               folder.string(), what)};
    };
    const auto journal = JournalFile::Read(folder);
    const bool known = journal && journal->run_id == job_->run_id;
    if (!known && (fs::exists(folder / kJournal) || fs::exists(folder / "rounds.jsonl"))) {
      // One that was ended while it copied has a config of the job, and no journal yet.
      auto config = directory_->ReadFile("following");
      if (!config || *config != job_->run_id + "\n") return refused("the records of another job");
    }
    if (HasCheckpoints(folder)) return refused("checkpoints");
    journal_.reset();
    std::error_code error;
    for (const char* name : kRecords) {
      fs::remove(folder / name, error);
      if (error) return IoError(folder / name, "cannot remove");
    }
    directory_.reset();  // it has files open that are gone
    if (Status taken = TakeFolder(); !taken) return taken;
    if (!own_folder()) return refused("the lock of another coordinator");
    if (Status written = directory_->WriteFile("following", job_->run_id + "\n"); !written) {
      return written;
    }
    return directory_->WriteFile("config.ini", job_->config_text);
  }

  Status IsTheirs() const {
    const auto journal = JournalFile::Read(options_.run_dir);
    if (journal && journal->run_id == job_->run_id) return {};
    return Error{ErrorCode::kRefused,
                 fmt::format("{}: another coordinator is writing to this run directory, and it is "
                             "not the one at {}",
                             options_.run_dir, ToString(options_.follow))};
  }

  Status TakeLine(std::string_view line) {
    if (Status taken = reader_->Take(line); !taken) {
      return Broken("a journal that cannot be: " + taken.error().message);
    }
    return {};
  }

  Status TakeJournal(std::string_view text) {
    if (state_ != State::kCopying) return Broken("its journal twice");
    while (!text.empty()) {
      const std::size_t end = text.find('\n');
      if (end == std::string_view::npos) return Broken("a journal that is cut off");
      if (Status taken = TakeLine(text.substr(0, end)); !taken) return taken;
      text.remove_prefix(end + 1);
    }
    const JournalFile::Contents& contents = reader_->contents();
    if (contents.run_id != job_->run_id) return Broken("the journal of another job");
    if (own_folder()) {
      if (Status written = directory_->WriteFile("term", fmt::format("{}\n", contents.term));
          !written) {
        return written;
      }
      auto begun = JournalFile::Begin(directory_->path(), contents, job_->config.journal.sync);
      if (!begun) return begun.error();
      journal_ = *std::move(begun);
    }
    state_ = State::kComplete;
    Contend();
    spdlog::info("this standby is complete: it has the journal of term {} up to round {}, in {}",
                 contents.term, NextRound(),
                 own_folder() ? "a folder of its own, with all records of rounds"
                              : "the run directory of the coordinator that it follows");
    return {};
  }

  Status TakeEntry(std::string line) {
    if (state_ != State::kComplete || !line.ends_with('\n')) return Broken("an entry out of turn");
    line.pop_back();
    if (Status taken = TakeLine(line); !taken) return taken;
    if (!journal_) return {};
    return journal_->Append(reader_->contents().entries.back());
  }

  // Nobody is to go on from it.
  Status ForgetJournal() {
    if (!journal_) return {};
    journal_.reset();
    std::error_code error;
    fs::remove(directory_->path() / kJournal, error);
    return error ? Status(IoError(directory_->path() / kJournal, "cannot remove")) : Status();
  }

  // --- taking over

  // For the lease, as long as this standby is complete.
  void Contend() {
    if (!options_.lease || !complete()) return;
    const Duration ttl = LeaseTtl(FromSeconds(job_->config.liveness.timeout_s));
    keeper_ = std::make_unique<LeaseKeeper>(
        io_, *options_.lease, Holder(), Lease(ttl),
        LeaseKeeper::Handlers{
            .on_lead =
                [this] {
                  const auto told = TakeOver("the lease " + ToString(*options_.lease));
                  if (told) return;
                  if (unable_.Allow(MonotonicNow())) spdlog::error("{}", told.error().message);
                  keeper_->Resign();
                },
            // Before it could take over; another one may have the lease.
            .on_stop = [this](const std::string&) { asio::post(io_, [this] { Contend(); }); }});
  }

  std::string Holder() const {
    return fmt::format("{} (pid {})", ToString(listener_->address()), ::getpid());
  }

  Result<std::string> TakeOver(const std::string& who) {
    const auto no = [](const std::string& why) { return Invalid("cannot take over: " + why); };
    if (succession_) return no("this standby does so already");
    switch (state_) {
      case State::kSeeking:
        return no(fmt::format("{} was never reached, so there is no job to go on with",
                              ToString(options_.follow)));
      case State::kCopying:
        return no("the records and the journal are still being copied");
      case State::kGivenUp:
        return no("the job went on without this standby, so its journal is not complete");
      case State::kComplete:
      case State::kCutOff:
        break;
    }
    if (options_.lease && !keeper_->leads()) {
      return no(fmt::format(
          "the lease {} decides, and {} holds it: end that coordinator", ToString(*options_.lease),
          keeper_->lease().holder().empty() ? "nobody yet" : keeper_->lease().holder()));
    }
    const JournalFile::Contents& journal = reader_->contents();
    if (journal.entries.empty()) return no("no round has been committed yet");
    if (!own_folder()) {
      // The lock is taken for good once this object is gone; a killed coordinator has none.
      if (auto lock = RunDirectory::Open(options_.run_dir, true); !lock) {
        return no(lock.error().message + ": end it first");
      }
    }
    if (channel_) {
      channel_->Send(msg::FromWorker(msg::Noted{.sequence = last_, .leads = journal.term.Next()}));
    }
    succession_.emplace();
    succession_->listen = listener_->address();
    succession_->workers = job_->workers;
    succession_->config = job_->config;
    succession_->journal = journal;
    if (keeper_) {
      succession_->lease = std::make_unique<LeaseHold>(*options_.lease, Holder(), keeper_->lease());
    }
    const std::string text =
        fmt::format("this standby takes over from {} before round {}, as told by {}",
                    ToString(options_.follow), NextRound(), who);
    spdlog::info("{}", text);
    asio::post(io_, [this] { io_.stop(); });
    return text;
  }

  const CoordinatorOptions options_;
  const std::string job_id_;
  std::optional<control::Secret> secret_;
  asio::io_context io_{1};
  asio::signal_set signals_{io_, SIGINT, SIGTERM, SIGUSR1};
  asio::steady_timer pause_{io_};
  asio::steady_timer settle_{io_};
  LogLimit rejections_{20, std::chrono::seconds(10)};
  LogLimit unable_{1, std::chrono::seconds(10)};
  std::unique_ptr<control::ControlServer> listener_;
  std::unique_ptr<StatusPage> page_;
  std::unique_ptr<LeaseKeeper> keeper_;  // while this standby is complete, and a lease decides
  std::unique_ptr<control::ControlClient> client_;
  std::unique_ptr<control::CoordinatorChannel> channel_;  // null: nobody is followed now

  State state_ = State::kSeeking;
  std::uint64_t last_ = 0;  // sequence, of this connection
  std::string pending_;     // a text that is not whole yet
  Part pending_part_ = Part::kJob;
  std::string refusal_;                      // the last one, told once
  std::optional<FollowedJob> job_;           // since the first kJob
  std::unique_ptr<JournalReader> reader_;    // likewise
  std::unique_ptr<RunDirectory> directory_;  // null: it is the active coordinator's, or not taken
  std::unique_ptr<JournalFile> journal_;     // in a folder of its own, while complete
  std::optional<Succession> succession_;
  int status_ = kStatusFailed;
  bool ended_ = false;
};

}  // namespace

std::string JobText(std::uint32_t workers, const std::string& config, const std::string& run_id) {
  return Json{{"workers", workers}, {"config", config}, {"run_id", run_id}}.dump(
      -1, ' ', false, Json::error_handler_t::replace);
}

Result<std::unique_ptr<Standby>> Standby::Open(const CoordinatorOptions& options,
                                               std::string job_id) {
  auto standby = std::make_unique<StandbyImpl>(options, std::move(job_id));
  if (Status started = standby->Start(); !started) return started.error();
  return std::unique_ptr<Standby>(std::move(standby));
}

}  // namespace lockstep::coordinator
