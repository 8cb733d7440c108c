// lockstep-worker: joins a job and trains until it ends.

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/free_memory.h"
#include "base/log.h"
#include "base/program_options.h"
#include "base/stop_signal.h"
#include "base/time.h"
#include "worker/compute/devices.h"
#include "worker/program/trainer.h"
#include "worker/runtime/session.h"

namespace {

constexpr int kStatusFailed = 1;
constexpr int kStatusUsage = 2;
constexpr int kStatusTryAgain = 3;  // nothing is wrong: the job has no place for it now

// Written before any handler is installed; the handler runs on whatever thread the kernel chooses.
std::atomic<int> g_signal_pipe = -1;
static_assert(std::atomic<int>::is_always_lock_free);

extern "C" void OnSignal(int signal) {
  const auto byte = static_cast<unsigned char>(signal);
  [[maybe_unused]] const ssize_t written = ::write(g_signal_pipe, &byte, 1);
}

// Brings SIGINT and SIGTERM to the session on a thread of its own, outside the signal handler.
// (Blocking the signals would not do: libraries have threads from before main.)
class SignalWatch {
 public:
  SignalWatch() {
    LOCKSTEP_CHECK(::pipe2(pipe_, O_CLOEXEC) == 0, "no pipe: {}", std::strerror(errno));
    g_signal_pipe = pipe_[1];
  }
  void Start(lockstep::worker::Session& session) {
    thread_ = std::thread([this, &session] {
      std::optional<lockstep::Time> first;
      while (true) {
        unsigned char signal = 0;
        if (::read(pipe_[0], &signal, 1) != 1 || signal == 0) return;
        const lockstep::Time now = lockstep::MonotonicNow();
        if (first && now - *first < lockstep::kOneStopSignal) continue;
        if (std::exchange(first, now)) _exit(kStatusFailed);
        session.Interrupt(signal == SIGINT ? "interrupted (SIGINT)" : "interrupted (SIGTERM)");
      }
    });
    struct sigaction action {};
    action.sa_handler = OnSignal;
    action.sa_flags = SA_RESTART;
    ::sigaction(SIGINT, &action, nullptr);
    ::sigaction(SIGTERM, &action, nullptr);
  }
  ~SignalWatch() {
    if (!thread_.joinable()) return;
    OnSignal(0);
    thread_.join();
  }

 private:
  int pipe_[2] = {-1, -1};
  std::thread thread_;
};

int Fail(const lockstep::Error& error) {
  std::fprintf(stderr, "lockstep-worker: %s\n", error.message.c_str());
  if (error.code == lockstep::ErrorCode::kTryAgain) return kStatusTryAgain;
  return error.code == lockstep::ErrorCode::kClosed || error.code == lockstep::ErrorCode::kIo
             ? kStatusFailed
             : kStatusUsage;
}

}  // namespace

int main(int argc, char** argv) {
  using lockstep::ErrorCode, lockstep::FromSeconds, lockstep::InitLogging, lockstep::Setting;
  namespace worker = lockstep::worker;
  lockstep::EndWhenOutOfResources("lockstep-worker");
  lockstep::OutliveFailedWrites();
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  auto parsed = lockstep::ParseWorkerOptions(arguments);
  if (!parsed) return Fail(parsed.error());
  if (!parsed->print.empty()) {
    std::fputs(parsed->print.c_str(), stdout);
    return 0;
  }
  const lockstep::WorkerOptions& options = *parsed;
  InitLogging("worker", options.log_level);
  if (lockstep::Status device = worker::CheckDevice(options.device); !device.ok()) {
    return Fail({ErrorCode::kInvalid, "--device " + device.error().message});
  }
  worker::SessionOptions session_options;
  session_options.coordinator = ToString(options.coordinator);
  session_options.secret_file = options.secret_file;
  session_options.wanted = options.wanted;
  session_options.device = options.device;
  session_options.gpu_pci = worker::PciAddress(options.device);
  session_options.require_gpudirect = options.require_gpudirect;
  session_options.data_host = options.data_host;
  for (const Setting& setting : options.overrides)
    session_options.overrides[setting.key] = setting.value;
  session_options.slowdowns = options.slowdowns;
  session_options.connect_timeout = FromSeconds(options.connect_timeout_s);
  // No handler and no destructor may wait for the thread that hangs.
  session_options.on_hung = [](const std::string& line) {
    spdlog::error("{}", line);
    spdlog::default_logger()->flush();
    _exit(kStatusFailed);
  };
  auto session = worker::Session::Join(std::move(session_options));
  if (!session) return Fail(session.error());
  InitLogging("worker " + std::to_string((*session)->self().worker.value), options.log_level);
  SignalWatch signals;
  signals.Start(**session);
  if (lockstep::Status trained = worker::Train(**session, options.device); !trained.ok())
    return Fail(trained.error());
  return 0;
}
