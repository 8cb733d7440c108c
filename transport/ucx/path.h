// The transports and devices that an endpoint uses, in words.
#pragma once

#include <ucp/api/ucp.h>

#include <string_view>

#include "transport/transport.h"

namespace lockstep::transport::ucx {

// Whether a transport, by UCX's name, is an RDMA transport: "rc_verbs", "dc_mlx5".
bool IsRdma(std::string_view transport);

// The transports that carry our bytes: "tcp/lo", "rc_mlx5/mlx5_0:1 + cuda_ipc/cuda (RDMA)";
// "unknown" where UCX does not say.
PathReport EndpointPath(ucp_ep_h endpoint);

// The same from the text of ucp_ep_print_info. UCX before 1.14 has no other way to tell.
PathReport PathFromPrintedInfo(std::string_view printed);

}  // namespace lockstep::transport::ucx
