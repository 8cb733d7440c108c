#include "tools/bench/exchange_worker.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <fstream>
#include <thread>
#include <utility>

#include "base/check.h"
#include "worker/compute/devices.h"
#include "worker/runtime/memory_account.h"
#include "worker/runtime/session.h"

namespace lockstep::bench {

struct Meeting::Shared {
  ::pthread_barrier_t barrier;
};

Result<Meeting::Shared*> Meeting::Map(const std::filesystem::path& file) {
  const auto failed = [&] {
    return Error{ErrorCode::kIo, fmt::format("{}: {}", file.string(), std::strerror(errno))};
  };
  const int fd = ::open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (fd < 0) return failed();
  void* at = MAP_FAILED;
  if (::ftruncate(fd, sizeof(Shared)) == 0) {
    at = ::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  }
  const Error error = failed();
  ::close(fd);
  if (at == MAP_FAILED) return error;
  return static_cast<Shared*>(at);
}

Status Meeting::Prepare(const std::filesystem::path& file, std::uint32_t processes) {
  auto shared = Map(file);
  if (!shared) return shared.error();
  ::pthread_barrierattr_t attributes;
  ::pthread_barrierattr_init(&attributes);
  ::pthread_barrierattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
  const int failure = ::pthread_barrier_init(&(*shared)->barrier, &attributes, processes);
  LOCKSTEP_CHECK(failure == 0, "no barrier of {}: {}", processes, std::strerror(failure));
  ::pthread_barrierattr_destroy(&attributes);
  ::munmap(*shared, sizeof(Shared));
  return {};
}

Result<Meeting> Meeting::Join(const std::filesystem::path& file) {
  auto shared = Map(file);
  if (!shared) return shared.error();
  return Meeting(*shared);
}

Meeting::Meeting(Meeting&& other) noexcept : shared_(std::exchange(other.shared_, nullptr)) {}

Meeting::~Meeting() {
  if (shared_ != nullptr) ::munmap(shared_, sizeof(Shared));
}

void Meeting::Wait() { ::pthread_barrier_wait(&shared_->barrier); }

// It has one line for the memory and one for each round, of nanoseconds.
Status Write(const WorkerReport& report, const std::filesystem::path& file) {
  std::ofstream out(file);
  out << report.peak_bytes << '\n';
  for (const worker::RoundTimes& times : report.rounds) {
    out << times.round.value;
    for (const Time at : {times.sealed, times.delivered, times.committed, times.reduced,
                          times.published, times.taken, times.applied}) {
      out << ' ' << at.time_since_epoch().count();
    }
    out << ' ' << times.copied << '\n';
  }
  out.close();
  if (out) return {};
  return Error{ErrorCode::kIo, fmt::format("{}: {}", file.string(), std::strerror(errno))};
}

Result<WorkerReport> ReadWorkerReport(const std::filesystem::path& file) {
  const Error broken{ErrorCode::kClosed, fmt::format("{}: not a worker's report", file.string())};
  std::ifstream in(file);
  WorkerReport report;
  in >> report.peak_bytes;
  for (worker::RoundTimes times; in >> times.round.value;) {
    for (Time* at : {&times.sealed, &times.delivered, &times.committed, &times.reduced,
                     &times.published, &times.taken, &times.applied}) {
      std::int64_t ns = 0;
      in >> ns;
      *at = Time(Duration(ns));
    }
    in >> times.copied;
    if (!in) return broken;
    report.rounds.push_back(times);
  }
  if (!in.eof() || report.rounds.empty()) return broken;
  return report;
}

Status RunExchangeWorker(ExchangeWorkerOptions options) {
  std::optional<Meeting> meeting;
  if (!options.meeting.empty()) {
    auto joined = Meeting::Join(options.meeting);
    if (!joined) return joined.error();
    meeting.emplace(std::move(*joined));
  }
  auto compute = worker::MakeCompute(options.device, "fp32");
  if (!compute) return compute.error();
  worker::SessionOptions session_options;
  session_options.coordinator = options.coordinator;
  session_options.secret_file = options.secret_file;
  session_options.data_host = options.data_host;
  session_options.connect_timeout = options.connect_timeout;
  session_options.device = options.device;
  // The data thread writes its rounds while the session lives.
  WorkerReport report;
  session_options.on_round = [&report](const worker::RoundTimes& times) {
    report.rounds.push_back(times);
  };
  session_options.on_memory_peak = [&report](const worker::MemoryAccount& account) {
    report.peak_bytes = account.total();
  };
  auto session = worker::Session::Join(std::move(session_options));
  if (!session) return session.error();
  if (options.describe) {
    if (Status fits = options.describe((*session)->config(), options); !fits) return fits;
  }

  worker::JobDescription job;
  job.parameter_count = options.parameters;
  job.blocks = {options.parameters};
  job.finish_order = {0};
  job.initialize = [](std::span<float> parameters) { std::ranges::fill(parameters, 0.0f); };
  job.dataset_digest = "nothing";
  job.train_samples = options.samples;
  if (const ExchangeSection& exchange = (*session)->config().exchange; exchange.rank() > 0) {
    // The tensor is a matrix of as many columns as a square bucket has, cut into buckets.
    const auto floats = std::min(options.parameters, exchange.bucket_bytes / sizeof(float));
    const auto side = static_cast<std::uint64_t>(std::sqrt(static_cast<double>(floats)));
    const std::uint64_t rows = options.parameters / side;
    job.tensors = {{"matrices", {rows, side}}, {"rest", {options.parameters - rows * side}}};
  }
  job.memory = (*compute)->MakeExchangeMemory();
  if (Status begun = (*session)->Begin(std::move(job)); !begun) return begun;

  for (;;) {
    const worker::Work work = (*session)->Next();
    switch (work.kind) {
      case worker::Work::Kind::kEnd:
        if (work.failed) return Error{ErrorCode::kClosed, work.reason};
        session->reset();
        return options.report.empty() ? Status() : Write(report, options.report);
      case worker::Work::Kind::kEvaluate:
        (*session)->EvaluationDone(0, 0);
        break;
      case worker::Work::Kind::kNone:      // only NextWithin returns it
      case worker::Work::Kind::kEpochEnd:  // only with JobDescription::epoch_ends
      case worker::Work::Kind::kUpdate:    // only optimizer.name = custom has it
        break;
      case worker::Work::Kind::kTrain:
        // The session, or the device at the start, has cleared the gradient; it does not change.
        if (options.idle > Duration::zero()) std::this_thread::sleep_for(options.idle);
        if (meeting) meeting->Wait();
        (*session)->Done({.samples = work.samples.size(), .loss_sum = 0});
        break;
    }
  }
}

}  // namespace lockstep::bench
