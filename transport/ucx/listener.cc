#include "transport/ucx/listener.h"

#include <fmt/format.h>

#include <algorithm>

#include "transport/tcp_sockets.h"
#include "transport/ucx/address.h"
#include "transport/ucx/library.h"
#include "transport/ucx/log.h"

namespace lockstep::transport::ucx {

Result<std::unique_ptr<Listener>> Listener::Open(const Worker& worker, const std::string& host,
                                                 std::weak_ptr<EventSink> sink) {
  const auto address = SocketAddress::FromHost(host, 0);
  if (!address) return address.error();
  if (address->any()) {
    return Error{ErrorCode::kInvalid,
                 fmt::format("cannot listen on {}: peers need the address of an interface", host)};
  }
  std::unique_ptr<Listener> listener(new Listener(std::move(sink)));
  ucp_listener_params_t params{};
  params.field_mask = UCP_LISTENER_PARAM_FIELD_SOCK_ADDR | UCP_LISTENER_PARAM_FIELD_CONN_HANDLER;
  params.sockaddr.addr = address->get();
  params.sockaddr.addrlen = address->size();
  params.conn_handler.cb = &Listener::OnRequest;
  params.conn_handler.arg = listener.get();
  LogCapture log;
  ucs_status_t status = ucp_listener_create(worker.get(), &params, &listener->listener_);
  if (status != UCS_OK) {
    listener->listener_ = nullptr;
    return Error{ErrorCode::kUnavailable,
                 fmt::format("UCX cannot listen on {}: {}{}{}", host, Describe(status),
                             log.text().empty() ? "" : ": ", log.text())};
  }
  ucp_listener_attr_t attributes{};
  attributes.field_mask = UCP_LISTENER_ATTR_FIELD_SOCKADDR;
  status = ucp_listener_query(listener->listener_, &attributes);
  if (status != UCS_OK) {
    return Error{ErrorCode::kUnavailable,
                 fmt::format("UCX does not say where it listens: {}", Describe(status))};
  }
  const SocketAddress bound(attributes.sockaddr);
  listener->address_ = bound.ToString();
  listener->port_ = bound.port();
  return listener;
}

Listener::~Listener() {
  if (listener_ != nullptr) ucp_listener_destroy(listener_);
}

bool Listener::HasConnections() const {
  return std::ranges::any_of(AllTcpSockets(), [this](const TcpSocket& socket) {
    return socket.established && socket.port == port_;
  });
}

void Listener::Reject(ucp_conn_request_h request) {
  // The status only says whether the other end could be told; the request is gone either way.
  static_cast<void>(ucp_listener_reject(listener_, request));
}

void Listener::OnRequest(ucp_conn_request_h request, void* argument) {
  // UCX ends its callbacks before ucp_listener_destroy returns, so the listener itself is alive
  // here.
  auto* listener = static_cast<Listener*>(argument);
  if (const auto sink = listener->sink_.lock()) {
    sink->OnConnectionRequest(request);
  } else {
    listener->Reject(request);
  }
}

}  // namespace lockstep::transport::ucx
