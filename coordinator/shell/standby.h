// A standby: it follows the coordinator of a job until it is told to take over. It has the job's
// settings and the journal, and in a folder of its own the records, too. It tells all who dial it
// at once that it does not lead yet.
//
// It takes over only while it is complete, so while it has all that any worker can have heard of
// (standby_feed.h). One that the active coordinator has given up follows anew.
//
// The folder is a run directory of its own, or that of the active coordinator on a shared file
// system. There it writes nothing, and takes the directory's lock with the job.
//
// It has one thread, and handles SIGINT, SIGTERM and SIGUSR1. Errors are one line.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "base/host_port.h"
#include "base/job_config.h"
#include "base/program_options.h"
#include "base/result.h"
#include "coordinator/journal/journal.h"
#include "coordinator/shell/lease_keeper.h"

namespace lockstep::coordinator {

// The text of msg::Followed::Part::kJob.
std::string JobText(std::uint32_t workers, const std::string& config, const std::string& run_id);

// A standby that takes over goes on with this.
struct Succession {
  HostPort listen;  // with the port that the kernel chose
  std::uint32_t workers = 0;
  JobConfig config;
  JournalFile::Contents journal;
  std::unique_ptr<LeaseHold> lease;  // null: it was told to take over
};

class Standby {
 public:
  // Opens the ports. `job_id`: for proofs over HTTP.
  static Result<std::unique_ptr<Standby>> Open(const CoordinatorOptions& options,
                                               std::string job_id);
  virtual ~Standby() = default;  // its ports are free afterwards

  // Follows until it takes over. nullopt: it has ended otherwise, with this status.
  virtual std::optional<Succession> Run() = 0;
  virtual int status() const = 0;
};

}  // namespace lockstep::coordinator
