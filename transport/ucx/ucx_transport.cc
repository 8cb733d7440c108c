#include "transport/ucx/ucx_transport.h"

#include <fmt/format.h>
#include <pthread.h>
#include <sched.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <future>
#include <thread>
#include <utility>

#include "base/check.h"
#include "transport/ucx/address.h"
#include "transport/ucx/engine.h"
#include "transport/ucx/library.h"
#include "transport/ucx/task_queue.h"

namespace lockstep::transport {
namespace {

using ucx::Context;
using ucx::Engine;
using ucx::TaskQueue;

// While transfers are under way the next event is near, and polling is cheaper than sleeping;
// between two polls the processor is offered to others.
constexpr Duration kSpin = std::chrono::microseconds(50);
// UCX has been seen to lose wake-ups, so no sleep is longer.
constexpr Duration kBusyNap = std::chrono::milliseconds(1);
constexpr Duration kIdleNap = std::chrono::milliseconds(5);
// A stop does not wait longer for UCX to release connections.
constexpr Duration kStopTime = std::chrono::seconds(5);
constexpr Duration kStrangerTime = std::chrono::milliseconds(200);

class UcxTransport final : public Transport {
 public:
  UcxTransport(Options options, UcxWiring wiring, std::unique_ptr<Context> context);
  ~UcxTransport() override { Stop(); }

  Status Start(Handler* handler) override;
  void Stop() override;
  void Post(std::function<void()> task) override { tasks_.Post(std::move(task)); }
  void PostAt(Time when, std::function<void()> task) override;
  const Capabilities& capabilities() const override { return capabilities_; }
  std::string address() const override { return address_; }

  void Connect(const MemberId& who, const std::string& address) override {
    CheckThread();
    engine_->Connect(who, address);
  }
  void Close(PeerId peer, std::string reason) override {
    CheckThread();
    engine_->Close(peer, std::move(reason));
  }
  Result<RegionId> Register(MemoryKind kind, void* base, std::size_t bytes) override {
    CheckThreadOrNotRunning();
    return engine_->Register(kind, base, bytes);
  }
  void Unregister(RegionId region) override {
    CheckThreadOrNotRunning();
    engine_->Unregister(region);
  }
  bool Send(PeerId peer, std::span<const std::byte> bytes) override {
    CheckThread();
    return engine_->Send(peer, bytes);
  }
  Result<FetchId> Fetch(PeerId peer, const PieceName& name, const Slice& destination) override {
    CheckThread();
    return engine_->Fetch(peer, name, destination);
  }
  void GiveUp(FetchId fetch) override {
    CheckThread();
    engine_->GiveUp(fetch);
  }
  void Provide(PeerId peer, std::uint64_t cookie, const Slice& slice) override {
    CheckThread();
    engine_->Provide(peer, cookie, slice);
  }

 private:
  void Run(Handler* handler, std::promise<Status> started);
  void Loop();
  void Nap(Time now);
  bool OnDataThread() const { return data_thread_.load() == std::this_thread::get_id(); }
  void CheckThread() const { LOCKSTEP_CHECK(OnDataThread(), "not on the data thread"); }
  void CheckThreadOrNotRunning() const {
    LOCKSTEP_CHECK(OnDataThread() || data_thread_.load() == std::thread::id(),
                   "not on the data thread");
  }

  Capabilities capabilities_;
  const std::function<Status()> enter_;  // may be null
  TaskQueue tasks_;
  std::shared_ptr<Engine> engine_;  // UCX holds a weak one
  std::string address_;
  std::thread thread_;
  std::atomic<std::thread::id> data_thread_{};
  bool started_ = false;
  bool stopping_ = false;  // for the data thread only
};

UcxTransport::UcxTransport(Options options, UcxWiring wiring, std::unique_ptr<Context> context)
    : enter_(options.enter_data_thread) {
  capabilities_.name = "ucx";
  capabilities_.version = ucx::ucp_get_version_string();
  capabilities_.cuda_memory = context->supports_cuda();
  capabilities_.max_message_bytes = std::min(ucx::kMaxMessageBytes, options.send_queue_bytes);
  capabilities_.max_piece_bytes = ucx::kMaxPieceBytes;
  capabilities_.fetch_window = options.fetch_window;
  engine_ = std::make_shared<Engine>(
      std::move(options), wiring, std::move(context),
      [this](Time when, std::function<void()> task) { tasks_.PostAt(when, std::move(task)); });
}

Status UcxTransport::Start(Handler* handler) {
  LOCKSTEP_CHECK(!started_, "a transport starts once");
  started_ = true;
  std::promise<Status> promise;
  auto started = promise.get_future();
  thread_ = std::thread([this, handler, promise = std::move(promise)]() mutable {
    Run(handler, std::move(promise));
  });
  Status status = started.get();
  if (!status) thread_.join();
  return status;
}

void UcxTransport::Stop() {
  if (!thread_.joinable()) return;
  LOCKSTEP_CHECK(!OnDataThread(), "the data thread cannot stop itself");
  Post([this] { stopping_ = true; });
  thread_.join();
}

void UcxTransport::PostAt(Time when, std::function<void()> task) {
  if (OnDataThread()) {
    tasks_.PostAt(when, std::move(task));
  } else {
    Post([this, when, task = std::move(task)]() mutable { tasks_.PostAt(when, std::move(task)); });
  }
}

// UCX's worker belongs to the thread that made it, so the data thread makes and ends it. UCX takes
// the memory of the device that is current on this thread.
void UcxTransport::Run(Handler* handler, std::promise<Status> started) {
  pthread_setname_np(pthread_self(), "ucx-data");
  data_thread_ = std::this_thread::get_id();
  Status status = enter_ ? enter_() : Status();
  if (status) status = engine_->Open(handler);
  if (status) {
    address_ = engine_->address();
    tasks_.Open([worker = &engine_->worker()] { worker->Signal(); });
  }
  started.set_value(status);
  if (status) Loop();
  tasks_.Close();
  engine_.reset();
}

void UcxTransport::Loop() {
  Time last_event = MonotonicNow();
  while (!stopping_) {
    const Time now = MonotonicNow();
    const bool ran = tasks_.RunDue(now);
    if (engine_->Turn() || ran) {
      last_event = now;
    } else if (engine_->Busy() && now - last_event < kSpin) {
      sched_yield();
    } else {
      Nap(now);
    }
  }
  engine_->BeginStop();
  const Time deadline = MonotonicNow() + kStopTime;
  while (!engine_->Stopped() && MonotonicNow() < deadline) {
    if (!engine_->Turn()) engine_->worker().Wait(kBusyNap);
  }
  // A peer that is connecting right now is awaited and refused; one that sends no hello is not.
  const Time patience = MonotonicNow() + kStrangerTime;
  while (engine_->Expecting() && MonotonicNow() < patience) {
    if (!engine_->Turn()) engine_->worker().Wait(kBusyNap);
  }
  if (!engine_->Stopped()) spdlog::warn("ucx: stopped while connections were still being closed");
}

void UcxTransport::Nap(Time now) {
  const Duration longest = engine_->Busy() ? kBusyNap : kIdleNap;
  engine_->worker().Wait(std::min(longest, tasks_.UntilNext(now)));
}

Result<std::unique_ptr<Context>> OpenContext(const Options& options, UcxWiring wiring) {
  if (options.job_key.empty()) return Error{ErrorCode::kInvalid, "the transport needs a job key"};
  if (options.fetch_window == 0 || options.fetch_window > ucx::kMaxFetchWindow) {
    return Error{ErrorCode::kInvalid, fmt::format("a fetch window of {} is not in 1..{}",
                                                  options.fetch_window, ucx::kMaxFetchWindow)};
  }
  return Context::Open(options.listen_host,
                       wiring == UcxWiring::kListener ? ucx::Scope::kAll : ucx::Scope::kWithoutTcp);
}

}  // namespace

Result<std::unique_ptr<Transport>> MakeUcxTransport(Options options, UcxWiring wiring) {
  auto context = OpenContext(options, wiring);
  if (!context) return context.error();
  return std::unique_ptr<Transport>(
      std::make_unique<UcxTransport>(std::move(options), wiring, std::move(*context)));
}

Result<std::unique_ptr<Transport>> MakeUcxRdmaTransport(Options options) {
  if (const Status opened = ucx::OpenLibrary(); !opened) return opened.error();
  const auto host = ucx::SocketAddress::FromHost(options.listen_host, 0);
  if (!host) return host.error();
  if (!host->LoopbackDevice().empty()) {
    return Error{ErrorCode::kUnavailable,
                 fmt::format("this worker listens on {}, and RDMA would open it to the network",
                             options.listen_host)};
  }
  auto context = OpenContext(options, UcxWiring::kAddresses);
  if (!context) return context.error();
  std::string others;
  for (const ucx::Way& way : (*context)->ways()) {
    if (way.rdma) {
      return std::unique_ptr<Transport>(std::make_unique<UcxTransport>(
          std::move(options), UcxWiring::kAddresses, std::move(*context)));
    }
    others += (others.empty() ? "" : ", ") + way.transport;
  }
  return Error{ErrorCode::kUnavailable, fmt::format("UCX {} finds no RDMA here, only {}",
                                                    ucx::ucp_get_version_string(), others)};
}

}  // namespace lockstep::transport
