// The coordinator's shell: control connections, signals, timers and the status page around a
// ActionRunner. It has one thread.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "base/program_options.h"
#include "base/result.h"
#include "coordinator/http/status_page.h"
#include "coordinator/shell/action_runner.h"
#include "coordinator/shell/lease_keeper.h"
#include "coordinator/shell/standby_feed.h"

namespace lockstep::coordinator {

// The most connections of each kind without a proof: strangers may take all of them.
struct OpenPlaces {
  std::size_t newcomers = 256;  // ControlServer::Options::max_pending
  std::size_t requests = StatusPage::kMaxConnections;
};

class Server {
 public:
  // Opens the ports (errors name the address); nothing runs yet. From here on the server handles
  // SIGINT and SIGTERM.
  static Result<std::unique_ptr<Server>> Open(const CoordinatorOptions& options, std::string job_id,
                                              const OpenPlaces& places = {});
  virtual ~Server() = default;

  // "HOST:PORT" with the port that the kernel chose.
  virtual std::string address() const = 0;
  virtual std::optional<std::string> http_address() const = 0;

  // With config_from_workers, call it before Run. It returns the job's settings from the training
  // program of the first worker that is admissible and has any. If all workers have none, the
  // settings are empty. They wait for their answer until Run, or until the server is gone.
  // kTimeout: none came within `limit`; kClosed: a signal came.
  virtual Result<std::string> AwaitSettings(Duration limit) = 0;
  // The settings in the options have become `options`, as a result.
  virtual Status Adopt(const CoordinatorOptions& options) = 0;
  // The first worker's settings make no job: all who wait are told so.
  virtual void Refuse(const std::string& reason) = 0;

  // For other coordinators: this one's rank, and its job.
  struct Lead {
    std::string run_id;
    Term term;
    StandbyFeed::Job job;                     // for its standby
    std::optional<HostPort> taken_over_from;  // was followed by this one, when it was a standby
    // That this one holds, and keeps from now on; null: it leads without one.
    std::unique_ptr<LeaseHold> lease;
    LeaseAddress lease_address = {};
    std::string lease_holder = {};
  };
  // Makes the runner with ports of this server, runs the job to its end and returns the runner,
  // which has the result.
  virtual std::unique_ptr<ActionRunner> Run(
      Lead lead, const std::function<std::unique_ptr<ActionRunner>(ActionRunner::Ports)>& make) = 0;
  // Why this coordinator ended without a word to anybody, as it must not lead; the job may go on
  // under another one. Empty: it did not. Then the runner has no result.
  virtual const std::string& abandoned() const = 0;
};

}  // namespace lockstep::coordinator
