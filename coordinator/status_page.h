// GET /status as JSON, over HTTP. Reads only; loopback only.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "base/host_port.h"
#include "base/result.h"

namespace boost::asio {
class io_context;
}

namespace lockstep::coordinator {

class StatusPage {
 public:
  // kInvalid for an address that is not loopback; kUnavailable when the port cannot be had.
  // `status` is called on the io_context's thread for each request.
  static Result<std::unique_ptr<StatusPage>> Listen(boost::asio::io_context& io,
                                                    const HostPort& address,
                                                    std::function<std::string()> status);
  virtual ~StatusPage() = default;
  virtual HostPort address() const = 0;
};

}  // namespace lockstep::coordinator
