#include "tools/bench/limits_bench.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "base/free_memory.h"
#include "tools/bench/report.h"
#include "worker/memory/reduce.h"
#include "worker/optimizer/rules.h"

namespace lockstep::bench {
namespace {

constexpr std::uint32_t kWarmUp = 2;
constexpr std::size_t kMostWorkers = 64;
constexpr std::size_t kMostRounds = 1000;
constexpr std::size_t kTcpWrite = 1u << 20;

enum Limit : std::uint8_t { kSum, kSumStep, kMemcpy, kTcp, kLimits };

// The data that the processes share beside the gradients. Each writes a place of its own, and reads
// what others have written behind the barrier.
struct Board {
  ::pthread_barrier_t barrier;
  std::array<std::array<std::int64_t, kMostWorkers>, kMostRounds> begin, end;
};

std::int64_t NowNs() { return MonotonicNow().time_since_epoch().count(); }

// Memory that is shared with children made later, and with nobody else.
class Shared {
 public:
  explicit Shared(std::size_t bytes) : bytes_(std::max<std::size_t>(bytes, 4096)) {
    at_ = ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  }
  ~Shared() {
    if (ok()) ::munmap(at_, bytes_);
  }
  Shared(Shared&& other) noexcept
      : at_(std::exchange(other.at_, MAP_FAILED)), bytes_(other.bytes_) {}
  Shared& operator=(Shared&&) = delete;
  bool ok() const { return at_ != MAP_FAILED; }
  float* floats() const { return static_cast<float*>(at_); }
  Board* board() const { return static_cast<Board*>(at_); }

 private:
  void* at_;
  std::size_t bytes_;
};

struct Job {
  std::uint32_t workers = 0;
  std::uint32_t rounds = 0;
  std::size_t floats = 0;
  Board* board = nullptr;
  std::vector<float*> gradients = {};  // of each worker
  float* sum = nullptr;                // each worker has its part of it
  std::array<int, 2> sockets = {-1, -1};
};

bool Transfer(int fd, bool send, std::byte* data, std::size_t bytes) {
  while (bytes > 0) {
    const std::size_t some = std::min(bytes, kTcpWrite);
    const ::ssize_t moved = send ? ::send(fd, data, some, MSG_NOSIGNAL) : ::recv(fd, data, some, 0);
    if (moved <= 0) return false;
    data += moved;
    bytes -= static_cast<std::size_t>(moved);
  }
  return true;
}

// Runs one process of `job.workers`: all make the same measurement, as they wait for each other.
bool RunProcess(const Job& job, std::uint32_t self, Limit limit) {
  const std::size_t n = job.floats;
  std::vector<float> own(limit == kSum ? 0 : n);  // parameters, or the target of the copy
  const std::size_t first = n * self / job.workers;
  const std::size_t count = n * (self + 1) / job.workers - first;
  std::vector<worker::Input> inputs;
  for (const float* gradient : job.gradients) inputs.push_back({gradient + first, 1.0f});
  const auto sum = [&] { worker::WeightedSum(inputs, job.sum + first, count); };
  const auto bytes_of = [](float* at) { return reinterpret_cast<std::byte*>(at); };
  for (std::uint32_t round = 0; round < job.rounds + kWarmUp; ++round) {
    ::pthread_barrier_wait(&job.board->barrier);
    const std::int64_t begin = NowNs();
    switch (limit) {
      case kSum:
        sum();
        break;
      case kSumStep:
        sum();
        ::pthread_barrier_wait(&job.board->barrier);
        worker::rules::HostLoops().SgdPlain({n, own.data(), job.sum, 1.0f}, {0.0f, 0.1f});
        break;
      case kMemcpy:
        std::memcpy(own.data(), job.gradients[self], n * sizeof(float));
        break;
      case kTcp:
        if (self < 2 &&
            !Transfer(job.sockets[self], self == 0,
                      bytes_of(self == 0 ? job.gradients[0] : own.data()), n * sizeof(float))) {
          return false;
        }
        break;
      case kLimits:
        break;
    }
    if (round < kWarmUp) continue;
    job.board->begin[round - kWarmUp][self] = begin;
    job.board->end[round - kWarmUp][self] = NowNs();
  }
  return true;
}

// Forked processes, so that mappings are shared; they end with this object at the latest.
class Processes {
 public:
  ~Processes() {
    for (std::size_t i = 0; i < pids_.size(); ++i) {
      if (fds_[i] < 0) continue;
      ::kill(pids_[i], SIGKILL);
      ::waitpid(pids_[i], nullptr, 0);
      ::close(fds_[i]);
    }
  }

  template <class Body>
  Status Start(const Body& body) {
    const pid_t parent = ::getpid();
    const pid_t pid = ::fork();
    if (pid == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (::getppid() != parent) ::_exit(1);
      ::_exit(body() ? 0 : 1);
    }
    if (pid < 0)
      return Error{ErrorCode::kUnavailable, fmt::format("fork: {}", std::strerror(errno))};
    const int fd = static_cast<int>(::syscall(SYS_pidfd_open, pid, 0));
    if (fd < 0) {
      const Error error{ErrorCode::kUnavailable, fmt::format("pidfd: {}", std::strerror(errno))};
      ::kill(pid, SIGKILL);
      ::waitpid(pid, nullptr, 0);
      return error;
    }
    pids_.push_back(pid);
    fds_.push_back(fd);
    return {};
  }

  // Waits until all have ended; returns an error as soon as one has failed, since the others then
  // wait for it.
  Status Wait(Signals& signals) {
    for (;;) {
      std::vector<::pollfd> waits = {{signals.fd(), POLLIN, 0}};
      for (const int fd : fds_) {
        if (fd >= 0) waits.push_back({fd, POLLIN, 0});
      }
      if (waits.size() == 1) return {};
      ::poll(waits.data(), waits.size(), -1);
      if (signals.Came()) return Interrupted();
      for (std::size_t i = 0; i < pids_.size(); ++i) {
        int status = 0;
        if (fds_[i] < 0 || ::waitpid(pids_[i], &status, WNOHANG) != pids_[i]) continue;
        ::close(std::exchange(fds_[i], -1));
        if (status != 0) return Error{ErrorCode::kClosed, "a measuring process has failed"};
      }
    }
  }

 private:
  std::vector<pid_t> pids_;
  std::vector<int> fds_;  // -1: has ended
};

// Two ends of a TCP connection over loopback.
Result<std::array<int, 2>> Connected() {
  const auto failed = [] {
    return Error{ErrorCode::kUnavailable,
                 fmt::format("no TCP connection over loopback: {}", std::strerror(errno))};
  };
  const int listener = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  ::sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = ::htonl(INADDR_LOOPBACK);
  ::socklen_t size = sizeof address;
  auto* name = reinterpret_cast<::sockaddr*>(&address);
  std::array<int, 2> ends = {::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), -1};
  if (::bind(listener, name, size) == 0 && ::listen(listener, 1) == 0 &&
      ::getsockname(listener, name, &size) == 0 && ::connect(ends[0], name, size) == 0) {
    ends[1] = ::accept(listener, nullptr, nullptr);
  }
  const Error error = failed();
  ::close(listener);
  if (ends[1] >= 0) return ends;
  ::close(ends[0]);
  return error;
}

// Microseconds of the median round: from the last process that began to the last that ended.
Result<double> MeasureLimit(Job job, Limit limit, Signals& signals) {
  ::pthread_barrierattr_t attributes;
  ::pthread_barrierattr_init(&attributes);
  ::pthread_barrierattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
  ::pthread_barrier_init(&job.board->barrier, &attributes, job.workers);
  ::pthread_barrierattr_destroy(&attributes);
  if (limit == kTcp) {
    auto sockets = Connected();
    if (!sockets) return sockets.error();
    job.sockets = *sockets;
  }
  Status ended;
  {
    Processes processes;
    for (std::uint32_t i = 0; i < job.workers && ended; ++i) {
      ended = processes.Start([&job, i, limit] { return RunProcess(job, i, limit); });
    }
    if (ended) ended = processes.Wait(signals);
  }
  for (const int fd : job.sockets) {
    if (fd >= 0) ::close(fd);
  }
  if (!ended) return ended.error();
  std::vector<double> times;
  for (std::uint32_t round = 0; round < job.rounds; ++round) {
    const auto& begin = job.board->begin[round];
    const auto& end = job.board->end[round];
    const auto last = static_cast<std::ptrdiff_t>(job.workers);
    times.push_back(static_cast<double>(*std::max_element(end.begin(), end.begin() + last) -
                                        *std::max_element(begin.begin(), begin.begin() + last)) /
                    1e3);
  }
  return Median(times);
}

struct Row {
  std::uint64_t bytes = 0;
  std::array<double, kLimits> us = {};
};

Result<Row> MeasureRow(const LimitsBenchOptions& options, std::uint32_t bytes, Signals& signals) {
  const std::uint64_t needed = std::uint64_t{bytes} * (2 * std::uint64_t{options.workers} + 1);
  if (Status room = CheckMemory(needed, "memory for the gradients"); !room) return room.error();
  Job job{.workers = options.workers,
          .rounds = std::min<std::uint32_t>(options.rounds, kMostRounds),
          .floats = bytes / sizeof(float)};
  std::vector<Shared> mapped;
  for (std::uint32_t i = 0; i < options.workers + 1; ++i) mapped.emplace_back(bytes);
  mapped.emplace_back(sizeof(Board));
  for (const Shared& one : mapped) {
    if (!one.ok()) return Error{ErrorCode::kUnavailable, "no memory for the gradients"};
  }
  for (std::uint32_t i = 0; i < options.workers; ++i) {
    job.gradients.push_back(mapped[i].floats());
    std::fill_n(job.gradients.back(), job.floats, 1.0f);
  }
  job.sum = mapped[options.workers].floats();
  job.board = mapped.back().board();
  Row row;
  row.bytes = bytes;
  for (std::uint8_t limit = 0; limit < kLimits; ++limit) {
    auto us = MeasureLimit(job, static_cast<Limit>(limit), signals);
    if (!us) return us.error();
    row.us[limit] = *us;
  }
  return row;
}

}  // namespace

Status RunLimitsBench(const LimitsBenchOptions& options, Signals& signals) {
  if (Status writable = CheckReport(options.json); !writable) return writable;
  nlohmann::ordered_json out;
  out["workers"] = options.workers;
  out["rows"] = nlohmann::ordered_json::array();
  std::vector<std::vector<std::string>> cells = {
      {"bytes", "sum us", "sum, step us", "memcpy us", "tcp us", "tcp GB/s"}};
  for (const std::uint32_t bytes : options.bytes) {
    auto row = MeasureRow(options, bytes, signals);
    if (!row) return row.error();
    out["rows"].push_back({{"bytes", row->bytes},
                           {"sum_us", row->us[kSum]},
                           {"sum_step_us", row->us[kSumStep]},
                           {"memcpy_us", row->us[kMemcpy]},
                           {"tcp_us", row->us[kTcp]}});
    std::vector<std::string> line = {std::to_string(row->bytes)};
    for (const double us : row->us) line.push_back(fmt::format("{:.0f}", us));
    line.push_back(fmt::format("{:.2f}", static_cast<double>(bytes) / row->us[kTcp] / 1e3));
    cells.push_back(std::move(line));
  }
  if (options.json != "-") {
    std::printf("%u processes\n%s", options.workers, Table(cells).c_str());
  }
  return WriteReport(options.json, out.dump(2) + "\n");
}

}  // namespace lockstep::bench
