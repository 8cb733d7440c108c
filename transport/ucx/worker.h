// UCX's worker: progress, wake-ups, and active messages. Owned by the data thread.
#pragma once

#include <ucp/api/ucp.h>

#include <cstddef>
#include <memory>
#include <vector>

#include "base/result.h"
#include "base/time.h"
#include "transport/ucx/context.h"
#include "transport/ucx/event_sink.h"
#include "transport/ucx/operation.h"

namespace lockstep::transport::ucx {

class Worker {
 public:
  static Result<std::unique_ptr<Worker>> Open(const Context& context,
                                              const std::weak_ptr<EventSink>& sink,
                                              std::shared_ptr<OperationPool> operations);
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  ucp_worker_h get() const { return worker_; }

  // The address of this worker in UCX's own form, for Endpoint::ToWorker.
  Result<std::vector<std::byte>> Address() const;

  // True when something happened. It is bounded, so that tasks and timers get their turn.
  bool Progress();
  // Sleeps until there is something to progress, Signal is called, or `longest` has passed.
  void Wait(Duration longest);
  // Ends the Wait that is under way, or else the next one. Any thread may call it.
  void Signal();

 private:
  struct Route;  // of one frame: the argument of its callback

  Worker(ucp_worker_h worker, int event_fd, std::shared_ptr<OperationPool> operations);
  Status Listen(Frame frame, std::weak_ptr<EventSink> sink);
  static ucs_status_t OnActiveMessage(void* argument, const void* header, std::size_t header_bytes,
                                      void* data, std::size_t bytes,
                                      const ucp_am_recv_param_t* param);

  ucp_worker_h worker_;
  int event_fd_;  // UCX's
  std::vector<std::unique_ptr<Route>> routes_;
  std::shared_ptr<OperationPool> operations_;  // outlives worker_
};

}  // namespace lockstep::transport::ucx
