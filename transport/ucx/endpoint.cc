#include "transport/ucx/endpoint.h"

#include <fmt/format.h>

#include "base/check.h"
#include "transport/ucx/library.h"
#include "transport/ucx/path.h"

namespace lockstep::transport::ucx {

struct Endpoint::ErrorRoute {
  PeerId peer;
  std::weak_ptr<EventSink> sink;
};

Endpoint::Endpoint(PeerId peer, std::weak_ptr<EventSink> sink)
    : route_(std::make_unique<ErrorRoute>(ErrorRoute{peer, std::move(sink)})) {}

ucs_status_t Endpoint::Create(const Worker& worker, ucp_ep_params_t params) {
  params.field_mask |= UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE | UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler.cb = &Endpoint::OnError;
  params.err_handler.arg = route_.get();
  const ucs_status_t status = ucp_ep_create(worker.get(), &params, &endpoint_);
  if (status != UCS_OK) endpoint_ = nullptr;
  return status;
}

Result<std::unique_ptr<Endpoint>> Endpoint::Connect(const Worker& worker, const SocketAddress& to,
                                                    PeerId peer, std::weak_ptr<EventSink> sink) {
  std::unique_ptr<Endpoint> endpoint(new Endpoint(peer, std::move(sink)));
  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_FLAGS | UCP_EP_PARAM_FIELD_SOCK_ADDR;
  params.flags = UCP_EP_PARAMS_FLAGS_CLIENT_SERVER;
  params.sockaddr.addr = to.get();
  params.sockaddr.addrlen = to.size();
  const ucs_status_t status = endpoint->Create(worker, params);
  if (status != UCS_OK) {
    return Error{ErrorCode::kUnavailable,
                 fmt::format("UCX cannot connect to {}: {}", to.ToString(), Describe(status))};
  }
  return endpoint;
}

Result<std::unique_ptr<Endpoint>> Endpoint::ToWorker(const Worker& worker,
                                                     std::span<const std::byte> address,
                                                     PeerId peer, std::weak_ptr<EventSink> sink) {
  std::unique_ptr<Endpoint> endpoint(new Endpoint(peer, std::move(sink)));
  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS;
  params.address = reinterpret_cast<const ucp_address_t*>(address.data());
  const ucs_status_t status = endpoint->Create(worker, params);
  if (status != UCS_OK) {
    return Error{ErrorCode::kUnavailable,
                 fmt::format("UCX cannot reach the peer's address: {}", Describe(status))};
  }
  return endpoint;
}

Result<std::unique_ptr<Endpoint>> Endpoint::Accept(const Worker& worker, ucp_conn_request_h request,
                                                   PeerId peer, std::weak_ptr<EventSink> sink) {
  std::unique_ptr<Endpoint> endpoint(new Endpoint(peer, std::move(sink)));
  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_CONN_REQUEST;
  params.conn_request = request;
  const ucs_status_t status = endpoint->Create(worker, params);
  if (status != UCS_OK) {
    return Error{ErrorCode::kUnavailable,
                 fmt::format("UCX cannot accept a connection: {}", Describe(status))};
  }
  return endpoint;
}

Endpoint::~Endpoint() {
  if (endpoint_ != nullptr) Close();
  // The request is still open here only when the worker goes down with it; the worker then takes it
  // along.
  if (close_request_ != nullptr) ucp_request_free(close_request_);
  if (flush_request_ != nullptr) ucp_request_free(flush_request_);
}

void Endpoint::OnError(void* argument, ucp_ep_h /*endpoint*/, ucs_status_t status) {
  const auto* route = static_cast<const ErrorRoute*>(argument);
  if (const auto sink = route->sink.lock()) sink->OnEndpointError(route->peer, status);
}

ucs_status_t Endpoint::SendEager(Frame frame, Operation* operation) {
  return Send(frame, operation, operation->body.data(), operation->body.size(),
              UCS_MEMORY_TYPE_HOST, UCP_AM_SEND_FLAG_EAGER);
}

ucs_status_t Endpoint::SendRendezvous(Frame frame, Operation* operation, const void* memory,
                                      std::size_t bytes, ucs_memory_type_t kind) {
  return Send(frame, operation, memory, bytes, kind, UCP_AM_SEND_FLAG_RNDV);
}

ucs_status_t Endpoint::Send(Frame frame, Operation* operation, const void* body, std::size_t bytes,
                            ucs_memory_type_t kind, unsigned flags) {
  LOCKSTEP_CHECK(!closing_, "a send on an endpoint that is being closed");
  ucp_request_param_t params{};
  params.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA |
                        UCP_OP_ATTR_FIELD_FLAGS | UCP_OP_ATTR_FIELD_MEMORY_TYPE;
  params.cb.send = &OperationPool::OnSendEnded;
  params.user_data = operation;
  // With the reply flag, UCX tells the receiver on which endpoint the message came. Only a message
  // that a listener has accepted is found by it; all others by their number.
  params.flags = flags | (frame == Frame::kHandshake ? UCP_AM_SEND_FLAG_REPLY : 0);
  params.memory_type = kind;
  void* request =
      ucp_am_send_nbx(endpoint_, static_cast<unsigned>(frame), operation->header.data.data(),
                      operation->header.size, body, bytes, &params);
  if (request == nullptr) return UCS_OK;
  if (UCS_PTR_IS_ERR(request)) return UCS_PTR_STATUS(request);
  return UCS_INPROGRESS;
}

void Endpoint::Flush() {
  if (closing_ || flush_request_ != nullptr) return;
  const ucp_request_param_t params{};
  void* request = ucp_ep_flush_nbx(endpoint_, &params);
  if (request != nullptr && !UCS_PTR_IS_ERR(request)) flush_request_ = request;
}

bool Endpoint::Flushed() const {
  return flush_request_ == nullptr || ucp_request_check_status(flush_request_) != UCS_INPROGRESS;
}

void Endpoint::Close() {
  if (closing_) return;
  closing_ = true;
  ucp_request_param_t params{};
  params.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
  params.flags = UCP_EP_CLOSE_FLAG_FORCE;
  void* request = ucp_ep_close_nbx(endpoint_, &params);
  endpoint_ = nullptr;
  // An error means that there was nothing left to close.
  if (request != nullptr && !UCS_PTR_IS_ERR(request)) close_request_ = request;
}

bool Endpoint::Closed() {
  if (!closing_) return false;
  if (close_request_ == nullptr) return true;
  if (ucp_request_check_status(close_request_) == UCS_INPROGRESS) return false;
  ucp_request_free(close_request_);
  close_request_ = nullptr;
  return true;
}

PathReport Endpoint::Path() const { return EndpointPath(endpoint_); }

}  // namespace lockstep::transport::ucx
