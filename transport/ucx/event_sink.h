// The target of UCX's callbacks. They run inside Worker::Progress, on the data thread; no
// implementation may progress the worker, close an endpoint or throw. The UCX objects hold a weak
// reference to the sink.
#pragma once

#include <ucp/api/ucp.h>

#include <cstddef>
#include <span>

#include "transport/transport.h"
#include "transport/ucx/wire.h"

namespace lockstep::transport::ucx {

struct ActiveMessage {
  Frame frame = Frame::kMessage;
  ucp_ep_h endpoint = nullptr;  // the one it came on; null: the sender did not let UCX say
  std::span<const std::byte> header;
  // The body, or for a rendezvous its descriptor.
  void* data = nullptr;
  std::size_t bytes = 0;
  bool rendezvous = false;
  // ucp_am_recv_data_nbx may be called on `data`.
  bool receivable = false;
};

class EventSink {
 public:
  virtual ~EventSink() = default;
  // False: this end does not want it. A rendezvous is then refused and its body is not sent.
  virtual bool OnActiveMessage(const ActiveMessage& message) = 0;
  // The sink must accept or reject it, later.
  virtual void OnConnectionRequest(ucp_conn_request_h request) = 0;
  // The endpoint is dead and still has to be closed.
  virtual void OnEndpointError(PeerId peer, ucs_status_t status) = 0;
};

}  // namespace lockstep::transport::ucx
