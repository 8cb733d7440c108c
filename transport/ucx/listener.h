// Listens for connections to a worker. It is owned by the data thread and closed before the worker.
#pragma once

#include <ucp/api/ucp.h>

#include <memory>
#include <string>

#include "base/result.h"
#include "transport/ucx/event_sink.h"
#include "transport/ucx/worker.h"

namespace lockstep::transport::ucx {

class Listener {
 public:
  // Listens on a port of the kernel's choice.
  static Result<std::unique_ptr<Listener>> Open(const Worker& worker, const std::string& host,
                                                std::weak_ptr<EventSink> sink);
  ~Listener();
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

  const std::string& address() const { return address_; }
  void Reject(ucp_conn_request_h request);
  // Whether the kernel knows of a connection to the listening socket. UCX accepts a connection and
  // waits for its request. If the listener ends meanwhile and the request comes after that, UCX
  // (1.13 to 1.18) calls back into the freed listener.
  bool HasConnections() const;

 private:
  explicit Listener(std::weak_ptr<EventSink> sink) : sink_(std::move(sink)) {}
  static void OnRequest(ucp_conn_request_h request, void* argument);

  ucp_listener_h listener_ = nullptr;
  std::string address_;
  std::uint16_t port_ = 0;
  std::weak_ptr<EventSink> sink_;
};

}  // namespace lockstep::transport::ucx
