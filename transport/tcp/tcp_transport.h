// The transport over plain TCP sockets, which works wherever Lockstep runs. tcp/frame.h describes
// the bytes.
#pragma once

#include <memory>

#include "base/result.h"
#include "transport/transport.h"

namespace lockstep::transport {

Result<std::unique_ptr<Transport>> MakeTcpTransport(Options options);

}  // namespace lockstep::transport
