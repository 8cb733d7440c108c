// One end of a connection, in UCX's error mode PEER: a dead peer is an event. It is owned by the
// data thread.
#pragma once

#include <ucp/api/ucp.h>

#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "base/result.h"
#include "transport/ucx/address.h"
#include "transport/ucx/event_sink.h"
#include "transport/ucx/operation.h"
#include "transport/ucx/worker.h"

namespace lockstep::transport::ucx {

class Endpoint {
 public:
  // The connection has only begun when this returns; operations that are started meanwhile wait.
  // Errors of `peer` go to the sink.
  static Result<std::unique_ptr<Endpoint>> Connect(const Worker& worker, const SocketAddress& to,
                                                   PeerId peer, std::weak_ptr<EventSink> sink);
  // It takes over the request, also on failure.
  static Result<std::unique_ptr<Endpoint>> Accept(const Worker& worker, ucp_conn_request_h request,
                                                  PeerId peer, std::weak_ptr<EventSink> sink);
  // Connects to the worker that has this address (Worker::Address). UCX must have made the address:
  // it parses the bytes without checking them. As with Connect, the connection has only begun.
  static Result<std::unique_ptr<Endpoint>> ToWorker(const Worker& worker,
                                                    std::span<const std::byte> address, PeerId peer,
                                                    std::weak_ptr<EventSink> sink);
  // Closes it if that was not done. No operation may be under way.
  ~Endpoint();
  Endpoint(const Endpoint&) = delete;
  Endpoint& operator=(const Endpoint&) = delete;

  ucp_ep_h get() const { return endpoint_; }

  // Sends the operation's header and body eagerly. UCS_OK: done, and there will be no callback;
  // UCS_INPROGRESS: the operation belongs to UCX until it ends; else the error.
  ucs_status_t SendEager(Frame frame, Operation* operation);
  // Offers the memory to the receiver, which fetches it or refuses.
  ucs_status_t SendRendezvous(Frame frame, Operation* operation, const void* memory,
                              std::size_t bytes, ucs_memory_type_t kind);

  // Begins to wait until the sent data has reached the other end's memory, or never will.
  void Flush();
  // True once that is so. Progress drives it.
  bool Flushed() const;

  // Ends the connection by force. The operations under way end in later calls of Progress.
  void Close();
  bool closing() const { return closing_; }
  // True once UCX has released the endpoint. Progress drives it.
  bool Closed();

  // The transports and devices that the bytes really take: "tcp/lo".
  PathReport Path() const;

 private:
  struct ErrorRoute;

  Endpoint(PeerId peer, std::weak_ptr<EventSink> sink);
  ucs_status_t Create(const Worker& worker, ucp_ep_params_t params);
  ucs_status_t Send(Frame frame, Operation* operation, const void* body, std::size_t bytes,
                    ucs_memory_type_t kind, unsigned flags);
  static void OnError(void* argument, ucp_ep_h endpoint, ucs_status_t status);

  ucp_ep_h endpoint_ = nullptr;
  std::unique_ptr<ErrorRoute> route_;
  bool closing_ = false;
  void* flush_request_ = nullptr;
  void* close_request_ = nullptr;
};

}  // namespace lockstep::transport::ucx
