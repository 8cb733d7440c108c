// The HTTP interface: status and changes of a running job. A connection has one request, bounded in
// size and time. When too many connections come, silent ones are closed (transport/places.h).
#pragma once

#include <cstddef>
#include <memory>
#include <optional>

#include "base/host_port.h"
#include "base/result.h"
#include "coordinator/http/requests.h"

namespace boost::asio {
class io_context;
}

namespace lockstep::coordinator {

class StatusPage {
 public:
  static constexpr std::size_t kMaxConnections = 64;

  // `proof`: of the job's secret, which changes have to prove. Required for an address
  // that is not loopback (kInvalid without). kUnavailable when the port cannot be had. The handlers
  // are called on the io_context's thread for each request and may destroy the page; once it is
  // destroyed they are called no more. `connections`: that are held at a time.
  static Result<std::unique_ptr<StatusPage>> Listen(boost::asio::io_context& io,
                                                    const HostPort& address,
                                                    std::optional<HttpProof> proof,
                                                    HttpRequests::Handlers handlers,
                                                    std::size_t connections = kMaxConnections);
  virtual ~StatusPage() = default;
  virtual HostPort address() const = 0;
};

}  // namespace lockstep::coordinator
