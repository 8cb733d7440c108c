#include "worker/runtime/join.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <utility>

#include "base/ini.h"
#include "base/job_options.h"
#include "base/program_options.h"
#include "worker/runtime/compute_queue.h"
#include "worker/runtime/open_ports.h"

namespace lockstep::worker {
namespace {

constexpr Duration kWelcomeTimeout = std::chrono::seconds(30);

std::string HostName() {
  char name[256] = {};
  return ::gethostname(name, sizeof name - 1) == 0 ? name : "unknown";
}

Error NoWelcome(const SessionOptions& options, const Error& error) {
  if (error.code != ErrorCode::kTimeout) {
    return {error.code,
            fmt::format("the coordinator at {}: {}", options.coordinator, error.message)};
  }
  // Who has proven the secret is one.
  if (!options.secret_file.empty()) {
    return {error.code, fmt::format("the coordinator at {} has proven the secret, and its welcome "
                                    "does not come: it is stopped, or the way to it loses large "
                                    "packets (its ends differ in MTU)",
                                    options.coordinator)};
  }
  return {error.code, fmt::format("{} takes connections and does not answer: is a coordinator "
                                  "listening there, and not something else?",
                                  options.coordinator)};
}

Result<msg::Welcome> WaitForWelcome(const SessionOptions& options, CoordinatorInbox& inbox,
                                    Duration limit) {
  auto answer = inbox.Wait(std::min(kWelcomeTimeout, limit));
  if (!answer) return NoWelcome(options, answer.error());
  if (const auto* refuse = std::get_if<msg::Refuse>(&*answer)) {
    return Error{refuse->try_again ? ErrorCode::kTryAgain : ErrorCode::kRefused,
                 fmt::format("the coordinator refuses this worker: {}", refuse->reason)};
  }
  auto* welcome = std::get_if<msg::Welcome>(&*answer);
  if (welcome == nullptr)
    return Error{ErrorCode::kInvalid, "the coordinator did not begin with a welcome"};
  return std::move(*welcome);
}

Status TakeWelcome(const SessionOptions& options, CoordinatorInbox& inbox, Duration limit,
                   Joined* joined) {
  auto welcome = WaitForWelcome(options, inbox, limit);
  if (!welcome) return welcome.error();
  joined->welcome = std::move(*welcome);
  std::vector<Setting> settings;
  for (const auto& [key, value] : options.overrides) settings.push_back({key, value});
  auto config = ParseJobConfig(joined->welcome.config_text, "the job's config", settings);
  if (!config) return config.error();
  joined->config = std::move(*config);
  return {};
}

}  // namespace

std::string HostId() {
  std::ifstream in("/proc/sys/kernel/random/boot_id");
  std::string id;
  std::getline(in, id);
  return id;
}

CoordinatorChannel::CoordinatorChannel(ComputeQueue& compute)
    : inbox([&compute](const Error& broken) {
        compute.End({.reason = broken.message, .failed = true});
      }) {}

Result<Joined> Join(const SessionOptions& options, CoordinatorChannel& channel,
                    std::function<msg::RunInHand()> run_in_hand) {
  return Join(options, channel, std::move(run_in_hand),
              {.reach = options.connect_timeout, .welcome = options.connect_timeout});
}

Result<Joined> Join(const SessionOptions& options, CoordinatorChannel& channel,
                    std::function<msg::RunInHand()> run_in_hand, const JoinPatience& patience) {
  auto address = ParseHostPort(options.coordinator);
  if (!address) return address.error();
  const Status open = CheckDataHost(options.data_host, !options.secret_file.empty());
  if (!open.ok()) return open.error();
  CoordinatorInbox& inbox = channel.inbox;
  auto link = ControlLink::Connect(
      *address, options.secret_file, patience.reach,
      {.on_message = [&inbox](msg::ToWorker message) { inbox.Put(std::move(message)); },
       .on_closed = [&inbox](const Error& error) { inbox.Close(error); },
       .run_in_hand = std::move(run_in_hand)},
      patience.once);
  if (!link) return link.error();
  Joined joined;
  (*link)->Send(msg::Hello{.protocol = kProtocolVersion,
                           .version = Version(),
                           .host = HostName(),
                           .pid = static_cast<std::uint64_t>(::getpid()),
                           .device = options.device,
                           .wanted = options.wanted,
                           .host_id = HostId(),
                           .settings = options.settings});
  if (const Status taken = TakeWelcome(options, inbox, patience.welcome, &joined); !taken) {
    const ErrorCode code = taken.error().code;
    const bool refused = code == ErrorCode::kTryAgain || code == ErrorCode::kRefused;
    if (!refused) (*link)->Send(msg::Leave{kWorkerEnds});
    return taken.error();
  }
  channel.link = std::move(*link);
  channel.link->SetTimeout(FromSeconds(joined.config.liveness.timeout_s));
  return joined;
}

}  // namespace lockstep::worker
