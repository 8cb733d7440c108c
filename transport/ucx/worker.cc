#include "transport/ucx/worker.h"

#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <ctime>

#include "base/check.h"
#include "transport/ucx/library.h"

namespace lockstep::transport::ucx {
namespace {

constexpr int kProgressCallsPerTurn = 16;

Error Failed(const char* what, ucs_status_t status) {
  return Error{ErrorCode::kUnavailable, fmt::format("UCX: {}: {}", what, Describe(status))};
}

}  // namespace

struct Worker::Route {
  Frame frame;
  std::weak_ptr<EventSink> sink;
};

Result<std::unique_ptr<Worker>> Worker::Open(const Context& context,
                                             const std::weak_ptr<EventSink>& sink,
                                             std::shared_ptr<OperationPool> operations) {
  ucp_worker_params_t params{};
  params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  params.thread_mode = UCS_THREAD_MODE_SINGLE;
  ucp_worker_h handle = nullptr;
  ucs_status_t status = ucp_worker_create(context.get(), &params, &handle);
  if (status != UCS_OK) return Failed("no worker", status);
  std::unique_ptr<Worker> worker(new Worker(handle, -1, std::move(operations)));
  status = ucp_worker_get_efd(handle, &worker->event_fd_);
  if (status != UCS_OK) return Failed("no event descriptor", status);
  for (const Frame frame : kFrames) {
    if (const Status listening = worker->Listen(frame, sink); !listening) return listening.error();
  }
  return worker;
}

Worker::Worker(ucp_worker_h worker, int event_fd, std::shared_ptr<OperationPool> operations)
    : worker_(worker), event_fd_(event_fd), operations_(std::move(operations)) {}

Worker::~Worker() { ucp_worker_destroy(worker_); }

Status Worker::Listen(Frame frame, std::weak_ptr<EventSink> sink) {
  routes_.push_back(std::make_unique<Route>(Route{frame, std::move(sink)}));
  ucp_am_handler_param_t params{};
  params.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_FLAGS |
                      UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG;
  params.id = static_cast<unsigned>(frame);
  // With persistent data, a piece that UCX sends eagerly, as it may, is received like any other,
  // also into device memory.
  params.flags = UCP_AM_FLAG_WHOLE_MSG | (frame == Frame::kPiece ? UCP_AM_FLAG_PERSISTENT_DATA : 0);
  params.cb = &Worker::OnActiveMessage;
  params.arg = routes_.back().get();
  const ucs_status_t status = ucp_worker_set_am_recv_handler(worker_, &params);
  if (status != UCS_OK) return Failed("no active messages", status);
  return {};
}

ucs_status_t Worker::OnActiveMessage(void* argument, const void* header, std::size_t header_bytes,
                                     void* data, std::size_t bytes,
                                     const ucp_am_recv_param_t* param) {
  const auto* route = static_cast<const Route*>(argument);
  ActiveMessage message;
  message.frame = route->frame;
  if ((param->recv_attr & UCP_AM_RECV_ATTR_FIELD_REPLY_EP) != 0) message.endpoint = param->reply_ep;
  message.header = {static_cast<const std::byte*>(header), header_bytes};
  message.data = data;
  message.bytes = bytes;
  message.rendezvous = (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0;
  message.receivable = message.rendezvous || (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_DATA) != 0;
  const auto sink = route->sink.lock();
  const bool wanted = sink != nullptr && sink->OnActiveMessage(message);
  // Only a rendezvous may be answered with an error. A receive that has begun keeps its descriptor
  // whatever we return.
  return wanted || !message.rendezvous ? UCS_OK : UCS_ERR_CANCELED;
}

Result<std::vector<std::byte>> Worker::Address() const {
  ucp_address_t* address = nullptr;
  std::size_t bytes = 0;
  const ucs_status_t status = ucp_worker_get_address(worker_, &address, &bytes);
  if (status != UCS_OK) return Failed("no address", status);
  const auto* begin = reinterpret_cast<const std::byte*>(address);
  std::vector<std::byte> copy(begin, begin + bytes);
  ucp_worker_release_address(worker_, address);
  return copy;
}

bool Worker::Progress() {
  int calls = 0;
  while (calls < kProgressCallsPerTurn && ucp_worker_progress(worker_) != 0) ++calls;
  return calls != 0;
}

void Worker::Wait(Duration longest) {
  // A result other than OK means that there is something to progress.
  if (ucp_worker_arm(worker_) != UCS_OK) return;
  const auto nanoseconds = std::max<std::int64_t>(longest.count(), 0);
  timespec timeout{};
  timeout.tv_sec = nanoseconds / 1'000'000'000;
  timeout.tv_nsec = nanoseconds % 1'000'000'000;
  pollfd wanted{event_fd_, POLLIN, 0};
  ppoll(&wanted, 1, &timeout, nullptr);
}

void Worker::Signal() {
  const ucs_status_t status = ucp_worker_signal(worker_);
  LOCKSTEP_CHECK(status == UCS_OK, "UCX cannot be woken: {}", Describe(status));
}

}  // namespace lockstep::transport::ucx
