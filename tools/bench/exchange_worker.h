// A worker of the measured job: the real session with a training loop that computes nothing.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/job_config.h"
#include "base/result.h"
#include "base/time.h"
#include "worker/runtime/round_times.h"

namespace lockstep::bench {

// The place where the processes of a job wait for each other. They seal their contributions
// together, so nobody's exchange runs beside an earlier step of another one. It lies in a file that
// they map. A process that ends before it has waited blocks the others for good; the process that
// started them must handle that.
class Meeting {
 public:
  static Status Prepare(const std::filesystem::path& file, std::uint32_t processes);
  static Result<Meeting> Join(const std::filesystem::path& file);
  ~Meeting();
  Meeting(Meeting&& other) noexcept;
  Meeting& operator=(Meeting&&) = delete;

  void Wait();

 private:
  struct Shared;
  explicit Meeting(Shared* shared) : shared_(shared) {}
  static Result<Shared*> Map(const std::filesystem::path& file);

  Shared* shared_;
};

struct ExchangeWorkerOptions {
  std::string coordinator;  // "127.0.0.1:7070"
  std::string secret_file;  // empty: none
  std::string data_host;    // as for lockstep-worker
  Duration connect_timeout = std::chrono::seconds(60);
  std::uint64_t parameters = 0;
  std::uint64_t samples = 0;
  // Optional: sets the two fields by the job's config, before anything is opened.
  std::function<Status(const JobConfig& config, ExchangeWorkerOptions& options)> describe;
  std::string meeting;  // its file; empty: no worker waits for the others
  Duration idle{};      // sleep before each contribution, with `meeting` before that
  std::string device = "cpu";
  std::string report;  // a file: see WorkerReport; empty: none
};

// The findings of a worker of the measured job, in a file of its own when the job has ended.
struct WorkerReport {
  std::vector<worker::RoundTimes> rounds;
  std::uint64_t peak_bytes = 0;  // of its buffers, backed by pages
};
Status Write(const WorkerReport& report, const std::filesystem::path& file);
Result<WorkerReport> ReadWorkerReport(const std::filesystem::path& file);

// Returns when the job ends.
Status RunExchangeWorker(ExchangeWorkerOptions options);

}  // namespace lockstep::bench
